"""Cases: what waiting costs and shows, and how waiters are woken."""

from __future__ import annotations

import logging
import re
from os import getpid

import pytest

from aiorwlock_remote import Locks, LockTimeout, ReaderLock, TooManyWaiters
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.testing.conformance.actors import (
    TaskActor,
    TaskActors,
    task_actors,
)
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest

# Seconds between polls of one waiter, at least, in a store that notifies.
MIN_POLL_INTERVAL = 1.0


class WaitingCases(Cases):
    """Waiters share queue entries, are shown by ``info``, and obey their limits."""

    async def test_tasks_of_a_process_are_one_waiter(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Tasks of one process that wait in one mode share one queue entry."""
        async with task_actors(store) as actors:
            await actors.enters(others.mutex("order", 1))
            await actors.queues(locks.mutex("order", 1))
            for _ in range(5):
                await actors.asks(locks.mutex("order", 1))
            await actors.queues(locks.rwlock("order", 1).reader)
            for _ in range(5):
                await actors.asks(locks.rwlock("order", 1).reader)
            # One entry however many tasks: a store need not count or wake each of them.
            queue = (await others.mutex("order", 1).info()).queue
            assert [place.mode for place in queue] == ["write", "read"]

    async def test_info_shows_who_waits(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """``info`` shows mode and reason of waiters, and whether a writer waits."""
        async with task_actors(store) as actors:
            await actors.enters(locks.mutex("order", 1))
            await actors.queues(others.rwlock("order", 1).reader, reason="report")
            shown = await locks.mutex("order", 1).info()
            assert [(p.mode, p.waiting, p.reason) for p in shown.queue] == [
                ("read", 1, "report")
            ]
            assert not shown.has_pending_writer
            await actors.queues(others.rwlock("order", 1).writer)
            shown = await locks.mutex("order", 1).info()
            assert shown.has_pending_writer
            assert shown.pending_writer is not None
            assert shown.queue[0].age >= 0

    async def test_a_timeout_lets_the_others_wait_on(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A waiter that times out removes only itself from the queue."""
        async with task_actors(store) as actors:
            first = await actors.enters(locks.mutex("order", 1), "first")
            timeout = 2 * self.harness.answers_in
            lock = others.mutex("order", 1)
            hasty = await actors.queues(lock, "hasty", timeout=timeout)
            patient = await actors.asks(others.mutex("order", 1), "patient")
            assert isinstance(await hasty.gone(), LockTimeout)
            assert patient.waits
            await first.leave()
            await patient.inside()
            await actors.queue_has(locks.mutex("order", 1), 0)
        assert actors.order == ["first", "patient"]

    async def test_max_waiters_in_a_process(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A waiter beyond ``max_waiters`` gets ``TooManyWaiters``; the others stay."""
        lock = locks.mutex("order", 1, max_waiters=2)
        async with task_actors(store) as actors:
            first = await actors.enters(others.mutex("order", 1))
            waiting = [await actors.queues(lock), await actors.asks(lock)]
            with pytest.raises(TooManyWaiters) as caught:
                await lock.acquire()
            assert caught.value.limit == 2
            assert caught.value.resource == "order/1"
            assert await lock.try_acquire() is None
            await first.leave()
            for actor in waiting:
                await actor.inside()
                await actor.leave()

    async def test_max_waiters_of_all_processes(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The limit ``max_waiters`` counts the waiters of all processes."""
        async with task_actors(store) as actors:
            first = await actors.enters(others.mutex("order", 1))
            waiting = await actors.queues(others.mutex("order", 1))
            with pytest.raises(TooManyWaiters) as caught:
                await locks.mutex("order", 1, max_waiters=1).acquire()
            assert caught.value.limit == 1
            assert len((await locks.mutex("order", 1).info()).queue) == 1
            await first.leave()
            await waiting.inside()

    async def test_slow_wait_says_who_is_in_the_way(
        self,
        store: StoreUnderTest,
        locks: Locks,
        others: Locks,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """After ``slow_wait`` seconds the log names the holder; the wait continues."""
        lock = locks.mutex("order", 1, slow_wait=self.harness.answers_in)
        with caplog.at_level(logging.WARNING, logger="aiorwlock_remote.acquire"):
            async with task_actors(store) as actors:
                first = await actors.enters(others.mutex("order", 1), reason="refund")
                other = await actors.queues(others.mutex("order", 1))
                waiting = await actors.queues(lock)
                line = re.compile(
                    r"waited \S+ s for order/1 \(write\), "
                    rf"held \d+ s by \S+ pid {getpid()}: refund; 2nd in queue"
                )

                async def logged() -> bool:
                    return line.search(caplog.text) is not None

                await actors.until(logged)
                assert waiting.waits
                await first.leave()
                await other.inside()
                await other.leave()
                await waiting.inside()


class WakingCases(Cases):
    """A store that notifies wakes its waiters; they need not wait for a poll."""

    needs = Capability.NOTIFIES

    async def test_a_release_wakes_the_other_process(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A hand-over to another process takes less than half a poll interval."""
        clock, turns = SystemClock(), 5
        waited = 0.0
        for number in range(turns):
            async with task_actors(store) as actors:
                first = await actors.enters(locks.mutex("order", number))
                second = await actors.queues(others.mutex("order", number))
                released = clock.now()
                await first.leave()
                await second.inside()
                waited += clock.now() - released
        # By polls alone a hand-over takes half an interval on average.
        assert waited < turns * MIN_POLL_INTERVAL / 2

    async def test_a_release_wakes_all_readers(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A release wakes the waiting readers of all processes without a poll."""
        clock, turns = SystemClock(), 3
        waited = 0.0
        async with store.connect() as third:
            for number in range(turns):
                async with task_actors(store) as actors:
                    first = await actors.enters(locks.rwlock("c", number).writer)
                    readers = [
                        await actors.queues(each.rwlock("c", number).reader)
                        for each in (locks, others, third)
                    ]
                    released = clock.now()
                    await first.leave()
                    for reader in readers:
                        await reader.inside()
                    waited += clock.now() - released
        assert waited < turns * MIN_POLL_INTERVAL / 2

    async def test_an_upgrader_is_woken(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """When the last other reader leaves, a waiting upgrader is woken."""
        turns, waited = 3, 0.0
        for number in range(turns):
            lock, theirs = locks.rwlock("c", number), others.rwlock("c", number)
            async with task_actors(store) as actors:
                reader = await actors.enters(theirs.reader)
                held = await lock.reader.acquire()
                leaving = LeavingReader(reader, theirs.reader)
                actors.group.start_soon(leaving.when_closed, actors)
                upgraded = await held.upgrade()
                waited += SystemClock().now() - leaving.at
                await upgraded.release()
        assert waited < turns * MIN_POLL_INTERVAL / 2


class LeavingReader:
    """Reader that releases when new readers are refused; ``at``: when (local s)."""

    def __init__(self, reader: TaskActor, lock: ReaderLock) -> None:
        self.at: float = 0.0
        self._reader = reader
        self._lock = lock

    async def when_closed(self, actors: TaskActors) -> None:
        """Wait until a waiting upgrader keeps new readers out, then release."""
        await actors.until(self._closed)
        self.at = SystemClock().now()
        await self._reader.leave()

    async def _closed(self) -> bool:
        # A waiting upgrader is not in the queue that ``info`` shows: that no reader can
        # join is the one sign of it.
        joined = await self._lock.try_acquire()
        if joined is not None:
            await joined.release()
        return joined is None
