"""``locks.statistics()``: what a Locks does now, and has done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import Locks, Statistics, connect
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.backends.redis.connections import eventually
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_at_first_there_is_nothing() -> None:
    async with connect("memory://") as locks:
        assert locks.statistics() == Statistics(
            waiting={"read": 0, "write": 0, "permit": 0},
            held={"read": 0, "write": 0, "permit": 0},
            oldest_waiter=None,
            oldest_held=None,
            renewals_due=0,
            renewals_sent=0,
            renewals_failed=0,
            requests_sent=0,
            requests_retried=0,
            wakeups={"message": 0, "pushed": 0, "timer": 0, "poll": 0},
            connections={},
        )


@pytest.fixture
def store() -> FaultyMemory:
    """Return a new store whose waiters poll once in minutes.

    A poll that finds the lock free before its message is handled would save a request:
    the turn of one mode, and the request for the other that its release carries along,
    would be over when the message comes.
    """
    poll_policy = PollPolicy(poll_min=200.0, poll_max=300.0, entry_ttl=900.0)
    return FaultyMemory(poll_policy=poll_policy)


async def test_holders_and_waiters_by_mode(locks: Locks, near: Locks) -> None:
    rw = locks.rwlock("order", 1)
    async with anyio.create_task_group() as tasks, near.rwlock("order", 1).writer:

        async def wait(lock: object) -> None:
            async with lock:  # type: ignore[attr-defined]
                pass

        async def both_queue() -> bool:
            return len((await near.rwlock("order", 1).info()).queue) == 2

        tasks.start_soon(wait, rw.reader)
        tasks.start_soon(wait, rw.writer)
        await wait_until(both_queue, 60.0)
        seen = locks.statistics()
        assert seen.waiting == {"read": 1, "write": 1, "permit": 0}
        assert seen.held == {"read": 0, "write": 0, "permit": 0}
        assert seen.oldest_waiter is not None
        assert 0 < seen.oldest_waiter < 20
        assert seen.oldest_held is None
        there = near.statistics()
        assert there.held == {"read": 0, "write": 1, "permit": 0}
        assert there.waiting == {"read": 0, "write": 0, "permit": 0}
        assert there.oldest_held is not None
        assert 0 < there.oldest_held < 20
    after = locks.statistics()
    assert after.waiting == after.held == {"read": 0, "write": 0, "permit": 0}
    assert after.oldest_waiter is after.oldest_held is None
    # Both modes asked, were woken, asked again, and gave the lock back.
    assert after.wakeups == {"message": 2, "pushed": 0, "timer": 0, "poll": 0}
    assert after.requests_sent == 6


async def test_one_uncontended_cycle_is_two_requests(locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass
    seen = locks.statistics()
    assert (seen.requests_sent, seen.requests_retried) == (2, 0)


async def test_renewals_are_counted(locks: Locks) -> None:
    async with locks.mutex("order", 1, lease=0.6) as held:
        with anyio.fail_after(20):
            while not locks.statistics().renewals_sent:  # noqa: ASYNC110 - a thread
                await anyio.sleep(0.02)
        held.check()
    seen = locks.statistics()
    assert seen.renewals_due >= seen.renewals_sent >= 1
    assert seen.renewals_failed == 0


async def test_requests_that_are_repeated_are_counted(
    link: FaultyLink, locks: Locks
) -> None:
    link.fate = declined_once()
    async with locks.mutex("order", 1).acquire(timeout=0):
        pass
    assert locks.statistics().requests_retried == 1
    link.fate = declined_once()
    async with locks.mutex("order", 1):
        pass
    assert locks.statistics().requests_retried == 2
    held = await locks.mutex("order", 1).acquire()
    link.fate = declined_once()
    assert await held.release()
    assert locks.statistics().requests_retried == 3


def declined_once() -> Callable[[Command], Fate]:
    fates = [Fate.DECLINE]

    def fate(_: Command) -> Fate:
        return fates.pop() if fates else Fate.PASS

    return fate


async def test_statistics_cannot_be_changed() -> None:
    async with connect("memory://") as locks:
        seen = locks.statistics()
        with pytest.raises(dataclasses.FrozenInstanceError):
            seen.requests_sent = 7  # type: ignore[misc]
    assert seen.requests_sent == 0


async def test_the_connection_of_redis(tmp_path: Path) -> None:
    with closing(RedisServer(tmp_path)) as server:
        async with connect(server.url) as locks:
            ((where, state),) = locks.statistics().connections.items()
            assert str(server.port) in where
            assert state == "open"
            server.stop()
            await eventually(
                lambda: locks.statistics().connections == {where: "lost"},
                "its loss is shown",
            )
        assert locks.statistics().connections == {where: "closed"}


async def test_the_pools_of_postgresql(tables: str) -> None:
    async with connect(tables) as locks, connect(tables) as others:
        async with others.mutex("order", 1), anyio.create_task_group() as tasks:
            before = locks.statistics().connections
            assert before["listener"] == "none: waiters poll"
            assert before["requests"] == "1 open, 1 idle"
            tasks.start_soon(wait_for, locks)
            await eventually(
                lambda: locks.statistics().connections["listener"] == "open",
                "a waiter is woken by messages",
            )
            tasks.cancel_scope.cancel()
        async with locks.mutex("order", 2, lease=0.6):
            await eventually(
                lambda: locks.statistics().connections["renewals"] == "1 open, 1 idle",
                "renewals have their own connection",
            )


async def test_the_connections_of_sqlite(tmp_path: Path) -> None:
    async with connect(f"sqlite:///{tmp_path}/locks.db") as locks:
        seen = locks.statistics().connections
        assert seen == {"worker": "open", "watcher": "none: no task has waited"}
        async with locks.mutex("order", 1), anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for, locks)
            await eventually(
                lambda: locks.statistics().connections["watcher"] == "open",
                "the watcher looks for the waiter",
            )
            tasks.cancel_scope.cancel()
    seen = locks.statistics().connections
    assert seen == {"worker": "closed", "watcher": "closed"}


async def wait_for(locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass
