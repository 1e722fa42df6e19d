"""Waiting: who is woken, how, and how many may wait."""

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

MIN_POLL_INTERVAL = 1.0
"""No store may be polled for one waiter more often than this many seconds."""


class WaitingCases(Cases):
    """Waiting: what it costs, what it shows, when it ends."""

    async def test_tasks_of_a_process_are_one_waiter(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """However many tasks of a process wait in a mode, they have one place."""
        async with task_actors(store) as guests:
            await guests.enters(others.mutex("order", 1))
            await guests.queues(locks.mutex("order", 1))
            for _ in range(5):
                await guests.invite(locks.mutex("order", 1))
            await guests.queues(locks.rwlock("order", 1).reader)
            for _ in range(5):
                await guests.invite(locks.rwlock("order", 1).reader)
            queue = (await others.mutex("order", 1).info()).queue
            assert [place.mode for place in queue] == ["write", "read"]

    async def test_info_shows_who_waits(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The queue names modes and reasons, and whether a writer is pending."""
        async with task_actors(store) as guests:
            await guests.enters(locks.mutex("order", 1))
            await guests.queues(others.rwlock("order", 1).reader, reason="report")
            shown = await locks.mutex("order", 1).info()
            assert [(p.mode, p.waiting, p.reason) for p in shown.queue] == [
                ("read", 1, "report")
            ]
            assert not shown.has_pending_writer
            await guests.queues(others.rwlock("order", 1).writer)
            shown = await locks.mutex("order", 1).info()
            assert shown.has_pending_writer
            assert shown.pending_writer is not None
            assert shown.queue[0].age >= 0

    async def test_a_timeout_lets_the_others_wait_on(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Who gives up takes only itself out of the queue."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1), "first")
            timeout = 2 * self.harness.answers_in
            lock = others.mutex("order", 1)
            hasty = await guests.queues(lock, "hasty", timeout=timeout)
            patient = await guests.invite(others.mutex("order", 1), "patient")
            assert isinstance(await hasty.gone(), LockTimeout)
            assert patient.waits
            await first.leave()
            await patient.inside()
            await guests.places(locks.mutex("order", 1), 0)
        assert guests.order == ["first", "patient"]

    async def test_max_waiters_in_a_process(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """One waiter more than ``max_waiters`` is refused; those who wait are not."""
        lock = locks.mutex("order", 1, max_waiters=2)
        async with task_actors(store) as guests:
            first = await guests.enters(others.mutex("order", 1))
            waiting = [await guests.queues(lock), await guests.invite(lock)]
            with pytest.raises(TooManyWaiters) as caught:
                await lock.acquire()
            assert caught.value.limit == 2
            assert caught.value.resource == "order/1"
            assert await lock.try_acquire() is None
            await first.leave()
            for guest in waiting:
                await guest.inside()
                await guest.leave()

    async def test_max_waiters_of_all_processes(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The waiters of other processes count."""
        async with task_actors(store) as guests:
            first = await guests.enters(others.mutex("order", 1))
            waiting = await guests.queues(others.mutex("order", 1))
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
        """After ``slow_wait`` seconds the log says who holds it; the wait goes on."""
        lock = locks.mutex("order", 1, slow_wait=self.harness.answers_in)
        with caplog.at_level(logging.WARNING, logger="aiorwlock_remote.acquire"):
            async with task_actors(store) as guests:
                first = await guests.enters(others.mutex("order", 1), reason="refund")
                other = await guests.queues(others.mutex("order", 1))
                waiting = await guests.queues(lock)
                line = re.compile(
                    r"waited \S+ s for order/1 \(write\), "
                    rf"held \d+ s by \S+ pid {getpid()}: refund; 2nd in queue"
                )

                async def logged() -> bool:
                    return line.search(caplog.text) is not None

                await guests.until(logged)
                assert waiting.waits
                await first.leave()
                await other.inside()
                await other.leave()
                await waiting.inside()


class WakingCases(Cases):
    """Stores that notify: waiters are woken, the poll is only the backstop."""

    needs = Capability.NOTIFIES

    async def test_a_release_wakes_the_other_process(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Hand-overs from one process to another take far less than polls would."""
        clock, turns = SystemClock(), 5
        waited = 0.0
        for number in range(turns):
            async with task_actors(store) as guests:
                first = await guests.enters(locks.mutex("order", number))
                second = await guests.queues(others.mutex("order", number))
                released = clock.now()
                await first.leave()
                await second.inside()
                waited += clock.now() - released
        assert waited < turns * MIN_POLL_INTERVAL / 2

    async def test_a_release_wakes_all_readers(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """So do those to the readers of several processes, all at once."""
        clock, turns = SystemClock(), 3
        waited = 0.0
        async with store.connect() as third:
            for number in range(turns):
                async with task_actors(store) as guests:
                    first = await guests.enters(locks.rwlock("c", number).writer)
                    readers = [
                        await guests.queues(each.rwlock("c", number).reader)
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
        """The last other reader that leaves wakes who waits to upgrade."""
        turns, waited = 3, 0.0
        for number in range(turns):
            lock, theirs = locks.rwlock("c", number), others.rwlock("c", number)
            async with task_actors(store) as guests:
                reader = await guests.enters(theirs.reader)
                held = await lock.reader.acquire()
                leaving = LeavingReader(reader, theirs.reader)
                guests.group.start_soon(leaving.when_closed, guests)
                upgraded = await held.upgrade()
                waited += SystemClock().now() - leaving.at
                await upgraded.release()
        assert waited < turns * MIN_POLL_INTERVAL / 2


class LeavingReader:
    """A reader that leaves once joining it is closed: ``at`` that local time."""

    def __init__(self, reader: TaskActor, lock: ReaderLock) -> None:
        self.at: float = 0.0
        self._reader = reader
        self._lock = lock

    async def when_closed(self, guests: TaskActors) -> None:
        """Wait for an upgrader, then leave."""
        await guests.until(self._closed)
        self.at = SystemClock().now()
        await self._reader.leave()

    async def _closed(self) -> bool:
        joined = await self._lock.try_acquire()
        if joined is not None:
            await joined.release()
        return joined is None
