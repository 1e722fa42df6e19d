"""Plain writes of another program whose clock is ahead hide what is written later.

A cell that was set to null by such a write (no lightweight transaction) stays null for
every transaction until that time has passed: a grant that nobody can see excludes
nobody. ``USING TIMESTAMP`` is the clock of that other program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, BadRecord, Held, Locks, connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.read_back import (
    Ballot,
    Ballots,
)
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    ForceRelease,
    Granted,
    Release,
    Released,
    Renew,
    Reply,
    Waiting,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.cassandra.one_row import KEY, OneRow
from tests.servers.fix_cassandra import Keyspace

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the server is what is tested"),
    pytest.mark.usefixtures("layout"),
]

CELLS = ("ticket", "acquired_at", "version", "record", "frame", "row")
KINDS = ("mutex", "reader", "writer", "published mutex", "published reader")
HOUR = 3600.0
ORDER = resource("order", 42)
LEASE = 30_000_000
EARLIEST = 1_600_000_000_000_000
"""What is counted from a ballot is above; a provisional fence is 1."""


def hide(keyspace: Keyspace, options: Options, cell: str, key: int, at: int) -> None:
    """Set the cell to null, or delete the row, by a plain write of that time."""
    what = "DELETE" if cell == "row" else f"UPDATE SET {cell} = null"
    plainly(keyspace, options, what, key, at)


def plainly(
    keyspace: Keyspace, options: Options, what: str, key: int, at: int | None = None
) -> list[Any]:
    """What another program asks for, without a transaction."""
    verb, _, rest = what.partition(" ")
    table = options.quoted if verb == "UPDATE" else f"FROM {options.quoted}"
    time_of = "" if at is None else f"USING TIMESTAMP {at}"
    where = f"WHERE resource_type = 'order' AND resource_id = {key}"
    words = (
        (verb, rest, table, where)
        if verb == "SELECT"
        else (verb, table, time_of, rest, where)
    )
    return keyspace.visit.rows(" ".join(words))


def ahead(seconds: float) -> int:
    return int((time.time() + seconds) * 1e6)


async def enters(locks: Locks, kind: str, key: int, patience: float) -> Held | bool:
    """What it was granted, to be kept; of a published call whether it was."""
    if kind.startswith("published"):
        call = (
            locks.acquire_readers_lock
            if kind == "published reader"
            else locks.acquire_mutex_lock
        )
        return await call("order", key, "gluww")
    rwlock = locks.rwlock("order", key)
    lock = {"mutex": locks.mutex("order", key), "reader": rwlock.reader}.get(
        kind, rwlock.writer
    )
    return await lock.acquire(timeout=patience)


@pytest.mark.slow
@pytest.mark.only_on("asyncio", "the server is what is tested")
async def test_writes_that_hide_a_grant_for_an_hour(
    keyspace: Keyspace, options: Options
) -> None:
    """No acquire is granted, the error names the cell, and nothing is left behind."""
    results: dict[tuple[str, str], object] = {}
    names = [(cell, kind) for cell in CELLS for kind in KINDS]
    async with connect(keyspace.url) as one, connect(keyspace.url) as two:

        async def ask(key: int, cell: str, kind: str) -> None:
            hide(keyspace, options, cell, key, ahead(HOUR))
            found: list[object] = []
            for locks in (one, two):
                try:
                    found.append(await enters(locks, kind, key, 0))
                except BackendUnavailable as exc:
                    named = f"order/{key}" in str(exc) and cell in str(exc)
                    found.append(named and "ahead" in str(exc))
            results[cell, kind] = (
                found,
                plainly(keyspace, options, "SELECT ticket", key),
            )

        async with anyio.create_task_group() as group:
            for key, (cell, kind) in enumerate(names):
                group.start_soon(ask, key, cell, kind)
    assert results == dict.fromkeys(names, ([True, True], []))


@pytest.mark.slow
@pytest.mark.only_on("asyncio", "the server is what is tested")
async def test_writes_that_hide_a_grant_for_a_second(
    keyspace: Keyspace, options: Options
) -> None:
    """It is waited for; who is in then is seen by everybody, with a true fence."""
    results: dict[tuple[str, str], object] = {}
    names = [(cell, kind) for cell in CELLS for kind in KINDS]
    kept: list[Held | bool] = []
    async with connect(keyspace.url) as one, connect(keyspace.url) as two:

        async def until_in(kind: str, key: int) -> Held | bool:
            while True:
                try:
                    return await enters(one, kind, key, 20)
                except BackendUnavailable:
                    assert kind.startswith("published"), kind  # those do not wait
                    await anyio.sleep(0.1)

        async def ask(key: int, cell: str, kind: str) -> None:
            hide(keyspace, options, cell, key, ahead(1))
            held = await until_in(kind, key)
            kept.append(held)
            others = await two.mutex("order", key).try_acquire()
            (holder,) = (await two.mutex("order", key).info()).holders
            fence = holder.fence or 0
            same = held is True or (held and held.fence == fence)
            results[cell, kind] = same and fence >= EARLIEST, others

        async with anyio.create_task_group() as group:
            for key, (cell, kind) in enumerate(names):
                group.start_soon(ask, key, cell, kind)
    assert results == dict.fromkeys(names, (True, None))
    assert len(kept) == len(names)


Write = Callable[[str, float], object]


@pytest.fixture
def write(keyspace: Keyspace, options: Options) -> Write:
    """Another program's plain write to the row, so many seconds ahead."""

    def now(what: str, seconds: float) -> object:
        return plainly(keyspace, options, f"UPDATE SET {what}", KEY[1], ahead(seconds))

    return now


async def test_several_locks_wait_for_one_that_is_hidden(
    keyspace: Keyspace, write: Write
) -> None:
    async with connect(keyspace.url) as locks:
        write("ticket = null", 0.5)
        several = locks.mutex("order", 41), locks.mutex("order", 42)
        async with locks.multi(*several, timeout=20) as held:
            assert all(one.fence >= EARLIEST for one in held)


class Process:
    """The steps of one process on ``order/42``."""

    def __init__(self, table: Table) -> None:
        self._swapping = CasStepper(
            CassandraCas(table, current_event_loop()), lambda *_: None
        )

    def __call__(self, command: Command) -> Pending[Reply]:
        return self._swapping.step(ORDER, command)


def take(ticket: str, mode: Mode = Mode.WRITE, *, queue: bool = False) -> Acquire:
    claims = (Claim(ticket, LEASE),)
    return Acquire(claims, mode, client_id=ticket if queue else "", may_queue=queue)


@pytest.fixture
def one_row(keyspace: Keyspace, options: Options) -> OneRow:
    return OneRow(keyspace.visit.session, options)


async def test_a_seat_that_is_emptied_while_one_is_in(
    table: Table, one_row: OneRow, write: Write
) -> None:
    """Neither who comes next, nor who is carried along by a release, gets it unseen."""
    one, two = Process(table), Process(table)
    assert isinstance(await one(take("t1")), Granted)
    assert isinstance(await two(take("t2", queue=True)), Waiting)
    write("ticket = null", HOUR)
    with pytest.raises(BackendUnavailable, match="ticket cannot be seen"):
        await two(take("t2", queue=True))
    with pytest.raises(BackendUnavailable, match="ticket cannot be seen"):
        await one(Release("t1", then=(take("t3", queue=True),)))
    assert one_row.load() is None


async def test_a_place_in_the_queue_of_a_row_whose_seat_is_hidden(
    table: Table, write: Write
) -> None:
    """Our own vacant seat looks the same: also its next holder is to be seen."""
    one, two = Process(table), Process(table)
    assert isinstance(await one(take("t1")), Granted)
    assert isinstance(await two(take("t2", queue=True)), Waiting)
    released = await one(Release("t1"))
    assert isinstance(released, Released)
    assert released.held
    write("ticket = null", HOUR)
    with pytest.raises(BackendUnavailable, match="ticket cannot be seen"):
        await two(take("t2", queue=True))


async def test_a_seat_that_another_program_takes_over_stays(
    table: Table, one_row: OneRow, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a plain write just after the transaction: what is removed is ours alone."""
    read = Ballots.read

    def then(self: Ballots, *wanted: Any) -> Pending[Ballot]:  # noqa: ANN401
        write("ticket = 'other'", 0)
        return read(self, *wanted)

    monkeypatch.setattr(Ballots, "read", then)
    with pytest.raises(BackendUnavailable, match="ticket cannot be seen"):
        await Process(table)(take("t1"))
    row = one_row.load()
    assert (row.ticket, row.version, row.record) == ("other", None, None)


@pytest.mark.parametrize("mode", list(LOCK_MODES))
async def test_others_queue_behind_what_is_left(
    table: Table,
    one_row: OneRow,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
) -> None:
    """They take it for a seat of another program, which would stand for ever."""
    one, two = Process(table), Process(table)
    read, replies = Ballots.read, list[Reply]()

    def slowly(self: Ballots, *wanted: Any) -> Pending[Ballot]:  # noqa: ANN401
        monkeypatch.setattr(Ballots, "read", read)
        answer: Pending[Ballot] = Pending()

        def queued(step: Pending[Reply]) -> None:
            replies.append(step.result())
            read(self, *wanted).add_done_callback(
                lambda ballot: answer.set_result(ballot.result())
            )

        two(take("t2", queue=True)).add_done_callback(queued)
        return answer

    monkeypatch.setattr(Ballots, "read", slowly)
    write("acquired_at = null", HOUR)
    with pytest.raises(BackendUnavailable, match="gone before its fence was read"):
        await one(take("t1", mode))
    assert [type(reply) for reply in replies] == [Waiting]
    assert one_row.load() is None


@pytest.mark.parametrize("release", [True, False])
async def test_a_foreign_seat_that_cannot_be_removed(
    table: Table, one_row: OneRow, write: Write, *, release: bool
) -> None:
    """Nobody says that it is free while it stands there."""
    write("ticket = 'other', acquired_at = 1000", HOUR)
    one = Process(table)
    command = Release("other") if release else ForceRelease("", 0, seat="other,1")
    with pytest.raises(BackendUnavailable, match=r"ahead by 3\d\d\d\.\d s") as caught:
        await one(command)
    assert caught.value.nothing_done
    assert one_row.load().ticket == "other"


async def test_a_version_that_was_taken_away(table: Table, write: Write) -> None:
    """Two changes would not exclude each other: holders may only leave."""
    one, two = Process(table), Process(table)
    assert isinstance(await one(take("t1", Mode.READ)), Granted)
    write("version = null", 0)
    for step in (one(Renew((("t1", LEASE),))), two(take("t2", Mode.READ))):
        with pytest.raises(BadRecord, match="took the row's version away"):
            await step
    released = await one(Release("t1"))
    assert isinstance(released, Released)
    assert released.held
    assert isinstance(await two(take("t2", Mode.READ)), Granted)


async def test_a_record_that_was_taken_away(
    table: Table, one_row: OneRow, write: Write
) -> None:
    """Who is in stays and writes it anew; nobody joins by what it remembers."""
    one = Process(table)
    assert isinstance(await one(take("t1", Mode.READ)), Granted)
    write("record = null", 0)
    assert not isinstance(await one(take("t2", Mode.READ)), Granted)
    assert one_row.load().record is None


async def test_a_broken_lock_has_no_fence_of_another_programs_time(
    table: Table, one_row: OneRow, write: Write
) -> None:
    """A ticket that another program wrote over ours is as old as that one's clock."""
    one, two = Process(table), Process(table)
    assert isinstance(await one(take("t1")), Granted)
    write("ticket = 'other'", 0.3)
    assert isinstance(await two(take("t2", queue=True)), Waiting)
    write("ticket = null", 0.3)
    granted = None
    while not isinstance(granted, Granted):
        with suppress(BackendUnavailable):
            granted = await two(take("t2", queue=True))
    assert granted.grants[0].fence == one_row.fence()
