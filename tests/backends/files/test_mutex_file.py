"""Whatever stands where a seat would: other programs' locks, of many kinds."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, Locks, connect
from aiorwlock_remote.backends.files import resource_files
from aiorwlock_remote.backends.files.clocks import BOOT_FILE
from aiorwlock_remote.backends.files.directory import CHANGES, MARK
from aiorwlock_remote.core.commands import Acquire, Claim, Waiting
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.embedded import worker
from aiorwlock_remote.embedded.connection import KeptLocked
from aiorwlock_remote.embedded.store import ConnectionRenewer
from aiorwlock_remote.ports import Renewal
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.files.one_resource import LEASE, ResourceClient

SEAT = "order,42.lock"
SCRIPT = """
set -o noclobber
if { echo "$1" > "$2"; } 2> /dev/null; then echo got; else echo busy; fi
"""


def script(ticket: str, seat: Path) -> str:
    """What a shell script comes to that asks for it."""
    command = ["sh", "-c", SCRIPT, "sh", ticket, str(seat)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def test_a_shell_script_and_we(tmp_path: Path) -> None:
    client, seat = ResourceClient(tmp_path), tmp_path / SEAT
    assert script("theirs", seat) == "got"
    assert not client.take("ours")
    seat.unlink()
    assert client.take("ours")
    assert seat.read_text() == "ours\n"
    assert script("theirs", seat) == "busy"
    client.give("ours")
    assert script("theirs", seat) == "got"


def nothing_in_it(seat: Path) -> None:
    seat.touch()


def not_text(seat: Path) -> None:
    seat.write_bytes(b"\xff\n\x00" * 30_000)


def folder(seat: Path) -> None:
    seat.mkdir()


def link_to_nothing(seat: Path) -> None:
    seat.symlink_to("host.4711:1700000000")


def pipe(seat: Path) -> None:
    os.mkfifo(seat)


@pytest.mark.parametrize(
    "make", [nothing_in_it, not_text, folder, link_to_nothing, pipe]
)
def test_odd_seats_keep_us_out_and_can_be_broken(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    client, seat = ResourceClient(tmp_path), tmp_path / SEAT
    make(seat)
    assert not client.take("ours")
    seen = client.look().seat
    assert seen is not None
    (found,) = client.scan()
    assert found.seat == seen
    client.force(seen.value + "0")
    assert seat.exists() or seat.is_symlink()
    client.force(seen.value)
    assert client.take("ours")


def test_one_that_we_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sits there, whoever it is."""
    (tmp_path / SEAT).write_text("theirs\n")
    client = ResourceClient(tmp_path)

    def refused(path: str) -> tuple[str, int]:
        raise PermissionError(13, path)

    monkeypatch.setattr(resource_files, "_read_plain_entry", refused)
    assert not client.take("ours")


@pytest.mark.parametrize("name", [b"\xff,1.lock", b"a%ff,1.lock", b".lock", b"a.lock"])
def test_names_of_nothing_are_passed_over(tmp_path: Path, name: bytes) -> None:
    client = ResourceClient(tmp_path)
    (tmp_path / os.fsdecode(name)).touch()
    client.take("ours")
    assert [found.resource.label for found in client.scan()] == ["order/42"]


def test_one_that_somebody_touches_is_another_one(tmp_path: Path) -> None:
    """Its program is alive: what was seen on screen is not what would be broken."""
    client, seat = ResourceClient(tmp_path), tmp_path / SEAT
    seat.write_text("theirs\n")
    seen = client.look().seat
    assert seen is not None
    os.utime(seat, (1e9, 1e9))
    client.force(seen.value)
    assert seat.exists()


def test_ours_replaced_by_theirs_is_stolen(tmp_path: Path) -> None:
    client, seat = ResourceClient(tmp_path), tmp_path / SEAT
    client.take("ours")
    seat.write_text("theirs\n")
    client.give("ours")
    assert seat.read_text() == "theirs\n"
    assert client.look().record.grants == ()


def somebody_comes_between(seat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sits down just before one of us would."""
    link = os.link

    def later(new: str, path: str) -> None:
        seat.write_text("theirs\n")
        link(new, path)

    monkeypatch.setattr(os, "link", later)


def test_a_foreign_program_that_comes_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sits down after we looked and before we did: it is there, we are not."""
    client, seat = ResourceClient(tmp_path), tmp_path / SEAT
    somebody_comes_between(seat, monkeypatch)
    assert not client.take("ours")
    assert seat.read_text() == "theirs\n"
    assert [path.name for path in tmp_path.iterdir() if path.name[:4] == ".new"] == []


def test_a_record_created_meanwhile_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step begins anew, in the record that it has just made."""
    client, seat = ResourceClient(tmp_path), tmp_path / SEAT
    somebody_comes_between(seat, monkeypatch)
    claims = (Claim("ours", LEASE),)
    files = len([*Path("/dev/fd").iterdir()])
    queued = client.ask(Acquire(claims, Mode.WRITE, client_id="we", may_queue=True))
    assert isinstance(queued, Waiting)
    assert [place.client_id for place in client.look().record.queue] == ["we"]
    assert len([*Path("/dev/fd").iterdir()]) == files


def test_a_seat_that_cannot_be_made_leaves_no_new_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt would make a full disk fuller."""
    client = ResourceClient(tmp_path)

    def full(*_: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "utime", full)
    with pytest.raises(BackendUnavailable, match="no space"):
        client.take("ours")
    assert {path.name for path in tmp_path.iterdir()} == {MARK, BOOT_FILE, CHANGES}


@pytest.mark.parametrize("used", [False, True])
def test_a_new_record_is_locked_from_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    used: bool,
) -> None:
    """A record that was just made is locked from the moment it is seen."""
    client, link = ResourceClient(tmp_path), os.link
    if used:
        client.take("before")
        client.give("before")
    tried: list[bool] = []

    def watched(new: str, path: str) -> None:
        with (tmp_path / "order,42.doorman").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                tried.append(True)
        link(new, path)

    monkeypatch.setattr(os, "link", watched)
    assert client.take("ours")
    assert tried == [True]


def test_an_answer_that_was_lost_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that links, and on repeating says that it is there."""
    client, link = ResourceClient(tmp_path), os.link

    def twice(new: str, path: str) -> None:
        link(new, path)
        link(new, path)

    monkeypatch.setattr(os, "link", twice)
    assert client.take("ours")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_shown_and_broken_through_the_library(tmp_path: Path) -> None:
    (tmp_path / SEAT).write_text("theirs\n")
    async with connect(tmp_path.as_uri()) as locks:
        (left,) = [found async for found in locks.stale()]
        assert (left.resource_type, left.resource_id) == ("order", "42")
        assert left.holders[0].foreign
        assert await locks.force_release(left, reason="its host is gone")
        held = await locks.mutex("order", 42).try_acquire()
        assert held is not None
        assert await held.release()


# --------- One record whose ``flock`` another process keeps stops no other lock


CYCLES = 100
HANGS = 60.0
"""Seconds after which the test itself is given up; nothing is measured by them."""


@contextmanager
def kept_locked(record: Path) -> Iterator[None]:
    """As ``flock order,1.doorman sleep 1d`` in a shell."""
    with record.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def want(locks: Locks, entered: anyio.Event) -> None:
    """Ask for the lock again and again, however often the request fails."""
    while not entered.is_set():
        try:
            async with locks.mutex("order", 1):
                entered.set()
        except BackendUnavailable:  # it was kept locked for all of its time
            continue


@pytest.mark.slow
@pytest.mark.anyio
async def test_unrelated_locks_go_on(tmp_path: Path) -> None:
    """Those of the same process, by its worker, its watcher and its keeper."""
    async with connect(tmp_path.as_uri()) as locks, connect(tmp_path.as_uri()) as other:
        async with locks.mutex("order", 1):
            pass
        entered = anyio.Event()
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(HANGS), kept_locked(tmp_path / "order,1.doorman"):
                for _ in range(3):
                    tasks.start_soon(want, locks, entered)
                await anyio.wait_all_tasks_blocked()
                # A holder that changes each time makes the watcher look, too.
                for number in range(CYCLES):
                    taker = locks if number % 2 else other
                    async with taker.mutex("order", 2):
                        pass
                assert (await locks.mutex("order", 2).info()).holders == ()
                assert [info async for info in locks.list()] == []
                assert not entered.is_set()
        assert entered.is_set()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_request_is_bounded_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BUSY_TIMEOUT", 0.05)
    record = tmp_path / "order,1.doorman"
    async with connect(tmp_path.as_uri()) as locks:
        async with locks.mutex("order", 1):
            pass
        with kept_locked(record), pytest.raises(BackendUnavailable) as caught:
            await locks.mutex("order", 1).try_acquire()
        assert caught.value.nothing_done
        assert str(record) in str(caught.value)
        async with locks.mutex("order", 1):
            pass


@pytest.mark.anyio
async def test_a_withdrawal_does_not_overtake_its_acquire(tmp_path: Path) -> None:
    """Both are put back, and tried again in their order."""
    async with connect(tmp_path.as_uri()) as locks:
        async with locks.mutex("order", 1):
            pass
        with kept_locked(tmp_path / "order,1.doorman"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(want, locks, anyio.Event())
                await anyio.wait_all_tasks_blocked()
                async with locks.mutex("order", 2):
                    tasks.cancel_scope.cancel()
        assert not await locks.mutex("order", 1).locked()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_step_that_hangs_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can tell what stands there; all others are seen, and woken."""
    monkeypatch.setattr(worker, "BUSY_TIMEOUT", 0.05)
    record = tmp_path / "order,1.doorman"
    ResourceClient(tmp_path).take("hangs", of=resource("order", 1))
    (tmp_path / "order,1.lock").unlink()  # the record says that there is a seat
    entered = anyio.Event()
    async with connect(tmp_path.as_uri()) as locks, connect(tmp_path.as_uri()) as other:
        with kept_locked(record):
            with pytest.raises(BackendUnavailable) as caught:
                await other.mutex("order", 1).info()
            assert str(record) in str(caught.value)
            store = other._session.client.store
            store.watch(resource("order", 1))
            async with anyio.create_task_group() as tasks:
                async with locks.mutex("order", 2):
                    tasks.start_soon(take, other, entered)
                    await wait_until(partial(queued, locks), 30)
                    assert [seen.resource_id async for seen in locks.list()] == ["2"]
                    assert "record_kept_locked" in caplog.text
                await entered.wait()


async def take(locks: Locks, entered: anyio.Event) -> None:
    async with locks.mutex("order", 2):
        entered.set()


async def queued(locks: Locks) -> bool:
    return bool((await locks.mutex("order", 2).info()).queue)


def test_renewals_of_a_batch_do_not_wait_for_one(tmp_path: Path) -> None:
    """No renewal is known before the whole batch is answered."""
    client, clock = ResourceClient(tmp_path), SystemClock()
    orders = [resource("order", number) for number in range(3)]
    for order in orders:
        client.take("ours", of=order)
    renewer = ConnectionRenewer(client.connection, clock)
    batch = [Renewal(order, "ours", LEASE) for order in orders]
    with kept_locked(tmp_path / "order,0.doorman"):
        kept, *others = renewer.renew(batch, 60.0)
    assert isinstance(kept, KeptLocked)
    assert all(isinstance(other, Grant) for other in others)
    assert all(isinstance(outcome, Grant) for outcome in renewer.renew(batch, 60.0))


def test_a_momentary_lock_costs_no_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ResourceClient(tmp_path)
    order = resource("order", 0)
    client.take("ours", of=order)
    renewer = ConnectionRenewer(client.connection, SystemClock())
    with ExitStack() as kept:
        kept.enter_context(kept_locked(tmp_path / "order,0.doorman"))
        monkeypatch.setattr(time, "sleep", lambda _: kept.close())
        (outcome,) = renewer.renew([Renewal(order, "ours", LEASE)], 60.0)
    assert isinstance(outcome, Grant)
