"""Cases: what waiting costs and shows, and how waiters are woken."""

from __future__ import annotations

import pytest

from aiorwlock_remote import Closed, LockTimeout, ReaderLock, TooManyWaiters
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import MODES, lock_of

# Seconds between polls of one waiter, at least, in a store that notifies.
MIN_POLL_INTERVAL = 1.0


class WaitingCases(Cases):
    """Waiters share queue entries, are shown by ``info``, and obey their limits."""

    async def test_tasks_of_a_process_are_one_waiter(self) -> None:
        """Tasks of one process that wait in one mode share one queue entry."""
        await self.actors.enters(self.others.mutex("order", 1))
        await self.actors.queues(self.locks.mutex("order", 1))
        for _ in range(5):
            await self.actors.asks(self.locks.mutex("order", 1))
        await self.actors.queues(self.locks.rwlock("order", 1).reader)
        for _ in range(5):
            await self.actors.asks(self.locks.rwlock("order", 1).reader)
        # One entry however many tasks: a store need not count or wake each of them.
        queue = (await self.others.mutex("order", 1).info()).queue
        assert [place.mode for place in queue] == ["write", "read"]

    async def test_info_shows_who_waits(self) -> None:
        """``info`` shows mode and reason of waiters, and whether a writer waits."""
        await self.actors.enters(self.locks.mutex("order", 1))
        await self.actors.queues(self.others.rwlock("order", 1).reader, reason="report")
        shown = await self.locks.mutex("order", 1).info()
        assert [(p.mode, p.waiting, p.reason) for p in shown.queue] == [
            ("read", 1, "report")
        ]
        assert not shown.has_pending_writer
        await self.actors.queues(self.others.rwlock("order", 1).writer)
        shown = await self.locks.mutex("order", 1).info()
        assert shown.has_pending_writer
        assert shown.pending_writer is not None
        assert shown.queue[0].age >= 0

    async def test_who_gave_up_is_in_nobodys_way(self) -> None:
        """After refused tries, a timeout and a close, the next waiter is the first."""
        first = await self.actors.enters(self.locks.mutex("order", 1), "first")
        for mode in MODES:
            lock = lock_of(self.others, mode, ("order", 1))
            assert await lock.try_acquire() is None
            with pytest.raises(LockTimeout):
                await lock.acquire(timeout=0)
            assert (await lock.info()).queue == (), "a try takes no place"
        with pytest.raises(LockTimeout):
            await self.others.mutex("order", 1).acquire(self.harness.answers_in)
        await self.actors.queue_has(self.locks.mutex("order", 1), 0)
        closing = await self.store.connect()
        ahead = await self.actors.queues(closing.mutex("order", 1), "closed")
        next_one = await self.actors.queues(self.others.rwlock("order", 1).reader, "r")
        await closing.aclose()
        assert isinstance(await ahead.gone(), Closed)
        await self.actors.queue_has(self.locks.mutex("order", 1), 1)
        await first.hand_over_to(next_one)
        assert self.actors.order == ["first", "r"]

    async def test_max_waiters_of_all_processes(self) -> None:
        """The limit ``max_waiters`` counts the waiters of all processes."""
        first = await self.actors.enters(self.others.mutex("order", 1))
        waiting = await self.actors.queues(self.others.mutex("order", 1))
        with pytest.raises(TooManyWaiters) as caught:
            await self.locks.mutex("order", 1, max_waiters=1).acquire()
        assert caught.value.limit == 1
        assert len((await self.locks.mutex("order", 1).info()).queue) == 1
        await first.hand_over_to(waiting)


class WakingCases(Cases):
    """A store that notifies wakes its waiters; they need not wait for a poll."""

    needs = Capability.NOTIFIES

    async def test_a_release_wakes_the_other_process(self) -> None:
        """A hand-over to another process takes less than half a poll interval."""
        turns, waited = 5, 0.0
        for number in range(turns):
            first = await self.actors.enters(self.locks.mutex("order", number))
            second = await self.actors.queues(self.others.mutex("order", number))
            waited += await first.hand_over_to(second)
        # By polls alone a hand-over takes half an interval on average.
        assert waited < turns * MIN_POLL_INTERVAL / 2

    async def test_a_release_wakes_all_readers(self) -> None:
        """A release wakes the waiting readers of all processes without a poll."""
        turns, waited = 3, 0.0
        async with self.store.connect() as third:
            for number in range(turns):
                first = await self.actors.enters(self.locks.rwlock("c", number).writer)
                readers = [
                    await self.actors.queues(each.rwlock("c", number).reader)
                    for each in (self.locks, self.others, third)
                ]
                waited += await first.hand_over_to(*readers)
            await self.actors.finish()
        assert waited < turns * MIN_POLL_INTERVAL / 2

    async def test_an_upgrader_is_woken(self) -> None:
        """When the last other reader leaves, a waiting upgrader is woken."""
        turns, waited = 3, 0.0
        for number in range(turns):
            theirs = self.others.rwlock("c", number).reader
            reader = await self.actors.enters(theirs)
            held = await self.locks.rwlock("c", number).reader.acquire()
            upgrader = await self.actors.upgrades(held)

            # A waiting upgrader is not in the queue that ``info`` shows: that no reader
            # can join is the one sign of it.
            async def refused(lock: ReaderLock = theirs) -> bool:
                joined = await lock.try_acquire()
                return joined is None or not await joined.release()

            await self.actors.until(refused)
            waited += await reader.hand_over_to(upgrader)
        assert waited < turns * MIN_POLL_INTERVAL / 2
