"""Who goes next."""

from __future__ import annotations

from aiorwlock_remote import Locks
from aiorwlock_remote.testing.conformance.actors import task_actors
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


class FairnessCases(Cases):
    """Phase-fair FIFO by default; the other policies favour one side."""

    async def test_fifty_tasks_in_order(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """The tasks of one process enter in the order they asked."""
        names = [f"task {number}" for number in range(50)]
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1), "first")
            for name in names:
                guest = await guests.invite(locks.mutex("order", 1), name)
                guest.may_leave()
            await first.leave()
        assert guests.order == ["first", *names]

    async def test_processes_take_turns(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A process with many waiters does not keep the lock to itself."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1), "first")
            await guests.queues(locks.mutex("order", 1), "a1")
            await guests.invite(locks.mutex("order", 1), "a2")
            await guests.invite(locks.mutex("order", 1), "a3")
            await guests.queues(others.mutex("order", 1), "b1")
            await guests.invite(others.mutex("order", 1), "b2")
            guests.all_may_leave()
            await first.gone()
        assert guests.order[:3] == ["first", "a1", "b1"]
        assert guests.order[3:] == ["a2", "b2", "a3"]

    async def test_try_acquire_does_not_overtake(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """While somebody is first in the queue, ``try_acquire`` is refused."""
        async with task_actors(store) as guests:
            reader = await guests.enters(locks.rwlock("c", 1).reader, "r")
            writer = await guests.queues(others.rwlock("c", 1).writer, "w")
            assert await locks.rwlock("c", 1).reader.try_acquire() is None
            assert await others.rwlock("c", 1).reader.try_acquire() is None
            await reader.leave()
            await writer.inside()

    async def test_new_readers_queue_behind_a_writer(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Readers that come after a waiting writer enter after it."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.rwlock("c", 1).reader, "r1")
            writer = await guests.queues(others.rwlock("c", 1).writer, "w")
            late = await guests.queues(locks.rwlock("c", 1).reader, "r2")
            later = await guests.queues(others.rwlock("c", 1).reader, "r3")
            await first.leave()
            await writer.inside()
            assert late.waits
            assert later.waits
            await writer.leave()
            await late.inside()
            await later.inside()
        assert guests.order[:2] == ["r1", "w"]

    async def test_after_a_writer_all_waiting_readers(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A writer is followed by the readers waiting then, although a writer waits."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.rwlock("c", 1).writer, "w1")
            second = await guests.queues(others.rwlock("c", 1).writer, "w2")
            readers = [
                await guests.queues(each.rwlock("c", 1).reader, "r")
                for each in (locks, others)
            ]
            readers.append(await guests.invite(locks.rwlock("c", 1).reader, "r"))
            await first.leave()
            for reader in readers:
                await reader.inside()
            assert second.waits
            assert await others.rwlock("c", 1).reader.try_acquire() is None
            for reader in readers:
                await reader.leave()
            await second.inside()
        assert guests.order == ["w1", "r", "r", "r", "w2"]

    async def test_the_oldest_writer_is_next(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Of several writers, of several processes, the one that asked first."""
        async with store.connect() as third, task_actors(store) as guests:
            first = await guests.enters(locks.rwlock("c", 1).reader, "r")
            for name, each in (("w1", others), ("w2", third), ("w3", locks)):
                await guests.queues(each.rwlock("c", 1).writer, name)
            guests.all_may_leave()
            await first.gone()
        assert guests.order == ["r", "w1", "w2", "w3"]

    async def test_nobody_starves(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A writer gets in although readers keep coming and never all leave."""
        async with task_actors(store) as guests:
            before = await guests.enters(locks.rwlock("c", 1).reader, "r0")
            writer = await guests.queues(others.rwlock("c", 1).writer, "w")
            coming = [
                await guests.invite(locks.rwlock("c", 1).reader, f"r{number}")
                for number in range(1, 6)
            ]
            assert all(reader.waits for reader in coming)
            await before.leave()
            await writer.inside()

    async def test_policy_writer(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """``policy="writer"``: waiting writers pass readers that came before them."""
        async with task_actors(store) as guests:
            mine = locks.rwlock("c", 1, policy="writer")
            theirs = others.rwlock("c", 1, policy="writer")
            first = await guests.enters(mine.writer, "w1")
            reader = await guests.queues(mine.reader, "r")
            second = await guests.queues(theirs.writer, "w2")
            await first.leave()
            await second.inside()
            assert reader.waits
            await second.leave()
            await reader.inside()
        assert guests.order == ["w1", "w2", "r"]

    async def test_policy_reader(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """``policy="reader"``: readers join readers although a writer waits."""
        async with task_actors(store) as guests:
            mine = locks.rwlock("c", 1, policy="reader")
            first = await guests.enters(mine.reader, "r1")
            writer = await guests.queues(others.rwlock("c", 1).writer, "w")
            second = await guests.enters(mine.reader, "r2")
            await first.leave()
            assert writer.waits
            await second.leave()
            await writer.inside()
        assert guests.order == ["r1", "r2", "w"]

    async def test_an_unfair_mutex_barges(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """``fair=False`` may pass a queue whose first has not come yet."""
        ticket = "a-writer-that-never-comes-back"
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("c", 1), "first")
            assert not await others.acquire_writer_lock("c", 1, ticket)
            await first.leave()
            # The pending writer is first now; it has not come yet, and never will.
            barger = await others.mutex("c", 1, fair=False).try_acquire()
            assert barger is not None
            await barger.release()

    async def test_who_does_not_come_blocks_nobody(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A dead process that was first in the queue costs one short window."""
        ticket = "a-writer-that-never-comes-back"
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("c", 1), "first")
            assert not await others.acquire_writer_lock("c", 1, ticket)
            second = await guests.queues(locks.mutex("c", 1), "second")
            await first.leave()
            await second.inside()
