"""The store as users see it: what it asks for, what it shows, who makes its table."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Literal

import anyio
import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockLost,
    Locks,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.testing.conformance.actors import Condition, wait_until
from tests.backends.cassandra.conftest import both_layouts
from tests.backends.cassandra.counting_store import CountingBackend
from tests.backends.cassandra.one_row import OneRow
from tests.renewals import renewed
from tests.servers.fix_cassandra import Keyspace

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("left_open")]

EMPTIED = """
UPDATE {table} SET ticket = null, acquired_at = null
WHERE resource_type = 'order' AND resource_id = 42 IF ticket != ''
"""


@pytest.fixture
def one_row(keyspace: Keyspace, options: Options) -> OneRow:
    return OneRow(keyspace.visit.session, options)


@both_layouts
async def test_the_transactions_of_a_lock(counted: CountingBackend) -> None:
    """One transaction to enter and one to leave, whatever kind of lock it is."""
    async with connect(counted) as locks:
        for lock in (
            locks.mutex("order", 42),
            locks.rwlock("c", "seven").writer,
            locks.rwlock("c", 8).reader,
        ):
            async with lock:
                assert counted.taken() == {"insert": 1, "read_ballot": 1}
            assert counted.taken() == {"delete": 1}


@both_layouts
@pytest.mark.parametrize("lease", [30, None])
async def test_a_look_tells_what_was_asked_before(
    keyspace: Keyspace, layout: str, lease: float | None
) -> None:
    """Though a plain read is quicker than a transaction, or than two."""
    assert layout
    async with connect(keyspace.url) as locks, anyio.create_task_group() as group:
        lock, seen = locks.mutex("order", 42, lease=lease), anyio.Event()

        async def hold() -> None:
            async with lock:
                await seen.wait()

        group.start_soon(hold)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        (holder,) = (await lock.info()).holders
        assert (holder.expires_in is None) == (lease is None)
        seen.set()


@both_layouts
async def test_a_renewed_lock_is_released_at_once(counted: CountingBackend) -> None:
    """The loop learns the state that the keeper's thread has stored."""

    async def heard() -> bool:
        return counted.states_seen > 0

    async with connect(counted) as locks:
        async with locks.mutex("order", 42, lease=3) as held:
            counted.taken()
            await renewed(held, 1)
            await wait_until(heard, 10)
            sent = counted.taken()
            assert set(sent) == {"update_record"}
        assert counted.taken() == {"delete": 1}


@both_layouts
async def test_a_seat_that_somebody_emptied(
    keyspace: Keyspace, counted: CountingBackend, options: Options
) -> None:
    """As whoever wants to break a lock by hand may do; its row stays."""
    async with connect(counted) as locks, connect(keyspace.url) as others:
        held = await locks.mutex("order", 42).acquire()
        keyspace.visit.rows(EMPTIED.format(table=options.quoted))
        async with others.mutex("order", 42).acquire(timeout=30) as taken:
            assert taken.fence > held.fence
            with pytest.raises(LockLost) as caught:
                await held.release()
            assert caught.value.reason == "forced"
        async with locks.mutex("order", 42) as again:
            assert again.fence > taken.fence


@both_layouts
async def test_a_lock_for_ever_is_made_from_a_short_one(
    counted: CountingBackend, one_row: OneRow
) -> None:
    """Else a request that is carried out late could lock for ever."""
    async with connect(counted) as locks:
        held = await locks.mutex("order", 42, lease=None).acquire()
        assert counted.taken() == {"insert": 1, "read_ballot": 1, "update_record": 1}
        assert '"expires":null' in one_row.load().record
        assert held.expires_in is None
        assert await held.release()
        assert await locks.acquire_mutex_lock("order", 42, "gluww")
        assert '"expires":null' in one_row.load().record
        assert await locks.acquire_mutex_lock("order", 42, "gluww")
        assert await locks.release_mutex_lock("order", 42, "gluww")


@both_layouts
async def test_one_that_could_not_be_made_to_last_is_taken_back(
    counted: CountingBackend, one_row: OneRow
) -> None:
    """Its second transaction was not done, but the first one was."""
    counted.unsent.add("update_record")
    async with connect(counted) as locks:
        with pytest.raises(BackendUnavailable) as caught:
            await locks.mutex("order", 42, lease=None).acquire(timeout=0)
        assert not caught.value.nothing_done
        assert one_row.load() is None


@pytest.mark.only_on("asyncio", "the server counts")
async def test_a_thousand_tasks_wait_quietly(counted: CountingBackend) -> None:
    """They poll by plain reads, as one; their place costs a transaction a second."""
    seconds = 4.0
    async with (
        connect(counted) as holder,
        connect(counted) as locks,
        holder.mutex("order", 42),
        anyio.create_task_group() as group,
    ):
        for _ in range(1000):
            group.start_soon(wait, locks)
        await wait_until(queued(holder), 10)
        counted.taken()
        await anyio.sleep(seconds)
        assert 0 < counted.swaps <= 5 * seconds
        assert counted.sent["peek"] <= 40 * seconds
        group.cancel_scope.cancel()


def queued(locks: Locks) -> Condition:
    async def is_known() -> bool:
        return bool((await locks.mutex("order", 42).info()).queue)

    return is_known


async def wait(locks: Locks) -> None:
    async with locks.mutex("order", 42):
        raise AssertionError


@both_layouts
@pytest.mark.no_uvloop("what is sent is the same")
async def test_eight_processes_take_turns(keyspace: Keyspace, layout: str) -> None:
    """A step that meets others costs two transactions on the average at most."""
    assert layout
    everybody = [CountingBackend(keyspace) for _ in range(8)]
    inside, entered = 0, 0
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connect(c)) for c in everybody]

        async def work(locks: Locks, turns: int) -> None:
            nonlocal inside, entered
            for _ in range(turns):
                async with locks.mutex("order", 42):
                    inside += 1
                    entered += 1
                    assert inside == 1
                    inside -= 1

        def swaps() -> int:
            return sum(one.swaps for one in everybody)

        def steps() -> int:
            return sum(one.steps for one in everybody)

        # A node that is not warm yet, or that has to wait for its turn on a busy
        # machine, makes all of them meet again and again.
        for turns in (2, 8, 8, 8):
            entered = 0
            for one in everybody:
                one.taken()
                one.steps = 0
            async with anyio.create_task_group() as group:
                for locks in opened:
                    group.start_soon(work, locks, turns)
            assert entered == 8 * turns
            assert steps() >= 2 * entered
            if turns == 8 and swaps() <= 2 * steps():
                break
    assert swaps() <= 2 * steps(), sum((one.sent for one in everybody), Counter())


@pytest.mark.parametrize("kind", ["pair", "type"])
async def test_the_table_is_made_when_asked_for(
    keyspace: Keyspace, kind: Literal["pair", "type"]
) -> None:
    """Nothing creates the table unasked; the error says how to create it."""
    backend = CassandraBackend(keyspace.visit.session, keyspace.name)
    with pytest.raises(Unsupported, match="rwlock schema cassandra"):
        await connect(backend)
    with pytest.raises(Unsupported, match="rwlock schema cassandra"):
        await connect(keyspace.url, connect_timeout=20)
    await backend.create_schema(kind)
    await backend.create_schema(kind)  # nothing happens
    async with connect(backend) as locks, locks.mutex("order", 42):
        found = {f.name: f async for f in locks.examine()}
    assert found["layout"].value == kind
    assert found["version"].rating == "good"
    assert "replication_factor=1" in found["replicas"].value
    assert found["paxos"].value.startswith("v")
    assert found["memory"].rating == "good"
    assert found["commit log"].value == "periodic"


async def test_a_backend_that_cannot_be_used(keyspace: Keyspace) -> None:
    session = keyspace.visit.session
    wrong: list[Callable[[], object]] = [
        lambda: CassandraBackend("cassandra://localhost/locks"),  # type: ignore[arg-type]
        lambda: CassandraBackend(session),  # which has no keyspace
        lambda: CassandraBackend(session, "a;b"),
        lambda: CassandraBackend(session, "locks", consistency="ONE"),
        lambda: CassandraBackend(session, "locks", request_timeout=0),
    ]
    for make in wrong:
        with pytest.raises(ConfigurationError):
            make()
    backend = CassandraBackend(session, "nowhere")
    assert repr(backend) == '<CassandraBackend of "nowhere"."mutex_locks">'
    with pytest.raises(ConfigurationError, match="layout"):
        await backend.create_schema("both")  # type: ignore[arg-type]
    with pytest.raises(Unsupported):
        await backend.create_schema()
    with pytest.raises(Unsupported, match="CREATE KEYSPACE"):
        await connect(backend)
