"""Cases: which of the waiters gets the lock next."""

from __future__ import annotations

from aiorwlock_remote import Locks
from aiorwlock_remote.testing.conformance.actors import task_actors
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


class FairnessCases(Cases):
    """Phase-fair order is the default; other policies favour readers or writers."""

    async def test_fifty_tasks_in_order(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """Tasks of one process enter in the order in which they asked."""
        names = [f"task {number}" for number in range(50)]
        async with task_actors(store) as actors:
            first = await actors.enters(locks.mutex("order", 1), "first")
            for name in names:
                actor = await actors.asks(locks.mutex("order", 1), name)
                actor.may_leave()
            await first.leave()
        assert actors.order == ["first", *names]

    async def test_processes_take_turns(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """If two processes have several waiters each, they get the lock in turn."""
        async with task_actors(store) as actors:
            first = await actors.enters(locks.mutex("order", 1), "first")
            await actors.queues(locks.mutex("order", 1), "a1")
            await actors.asks(locks.mutex("order", 1), "a2")
            await actors.asks(locks.mutex("order", 1), "a3")
            await actors.queues(others.mutex("order", 1), "b1")
            await actors.asks(others.mutex("order", 1), "b2")
            actors.all_may_leave()
            await first.gone()
        # A process is served one task at a time, and then queues behind the other one.
        assert actors.order[:3] == ["first", "a1", "b1"]
        assert actors.order[3:] == ["a2", "b2", "a3"]

    async def test_try_acquire_does_not_overtake(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """``try_acquire`` does not overtake a waiter that is first in the queue."""
        async with task_actors(store) as actors:
            reader = await actors.enters(locks.rwlock("c", 1).reader, "r")
            writer = await actors.queues(others.rwlock("c", 1).writer, "w")
            # A reader could join the live read phase if no writer waited, even in the
            # process that holds it.
            assert await locks.rwlock("c", 1).reader.try_acquire() is None
            assert await others.rwlock("c", 1).reader.try_acquire() is None
            await reader.leave()
            await writer.inside()

    async def test_new_readers_queue_behind_a_writer(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Readers that ask after a waiting writer enter after that writer."""
        async with task_actors(store) as actors:
            first = await actors.enters(locks.rwlock("c", 1).reader, "r1")
            writer = await actors.queues(others.rwlock("c", 1).writer, "w")
            late = await actors.queues(locks.rwlock("c", 1).reader, "r2")
            later = await actors.queues(others.rwlock("c", 1).reader, "r3")
            await first.leave()
            await writer.inside()
            assert late.waits
            assert later.waits
            await writer.leave()
            await late.inside()
            await later.inside()
        assert actors.order[:2] == ["r1", "w"]

    async def test_after_a_writer_all_waiting_readers(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """When a writer leaves, all waiting readers enter before the next writer."""
        async with task_actors(store) as actors:
            first = await actors.enters(locks.rwlock("c", 1).writer, "w1")
            second = await actors.queues(others.rwlock("c", 1).writer, "w2")
            readers = [
                await actors.queues(each.rwlock("c", 1).reader, "r")
                for each in (locks, others)
            ]
            readers.append(await actors.asks(locks.rwlock("c", 1).reader, "r"))
            await first.leave()
            for reader in readers:
                await reader.inside()
            # Only the readers that waited at the end of the write phase pass the
            # writer.
            assert second.waits
            assert await others.rwlock("c", 1).reader.try_acquire() is None
            for reader in readers:
                await reader.leave()
            await second.inside()
        assert actors.order == ["w1", "r", "r", "r", "w2"]

    async def test_the_oldest_writer_is_next(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Of several waiting writers, the one that asked first enters first."""
        async with store.connect() as third, task_actors(store) as actors:
            first = await actors.enters(locks.rwlock("c", 1).reader, "r")
            for name, each in (("w1", others), ("w2", third), ("w3", locks)):
                await actors.queues(each.rwlock("c", 1).writer, name)
            actors.all_may_leave()
            await first.gone()
        assert actors.order == ["r", "w1", "w2", "w3"]

    async def test_nobody_starves(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A waiting writer enters although new readers keep asking."""
        async with task_actors(store) as actors:
            before = await actors.enters(locks.rwlock("c", 1).reader, "r0")
            writer = await actors.queues(others.rwlock("c", 1).writer, "w")
            coming = [
                await actors.asks(locks.rwlock("c", 1).reader, f"r{number}")
                for number in range(1, 6)
            ]
            assert all(reader.waits for reader in coming)
            await before.leave()
            await writer.inside()

    async def test_policy_writer(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """With ``policy="writer"``, writers pass readers that asked before them."""
        async with task_actors(store) as actors:
            mine = locks.rwlock("c", 1, policy="writer")
            theirs = others.rwlock("c", 1, policy="writer")
            first = await actors.enters(mine.writer, "w1")
            reader = await actors.queues(mine.reader, "r")
            second = await actors.queues(theirs.writer, "w2")
            await first.leave()
            await second.inside()
            assert reader.waits
            await second.leave()
            await reader.inside()
        assert actors.order == ["w1", "w2", "r"]

    async def test_policy_reader(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """With ``policy="reader"``, new readers enter although a writer waits."""
        async with task_actors(store) as actors:
            mine = locks.rwlock("c", 1, policy="reader")
            first = await actors.enters(mine.reader, "r1")
            writer = await actors.queues(others.rwlock("c", 1).writer, "w")
            second = await actors.enters(mine.reader, "r2")
            await first.leave()
            assert writer.waits
            await second.leave()
            await writer.inside()
        assert actors.order == ["r1", "r2", "w"]

    async def test_an_unfair_mutex_barges(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """With ``fair=False``, an acquire may take a lock offered to a dead waiter."""
        ticket = "a-writer-that-never-comes-back"
        async with task_actors(store) as actors:
            first = await actors.enters(locks.mutex("c", 1), "first")
            assert not await others.acquire_writer_lock("c", 1, ticket)
            await first.leave()
            # The pending writer is first now. It has not come yet, and never will.
            barger = await others.mutex("c", 1, fair=False).try_acquire()
            assert barger is not None
            await barger.release()

    async def test_who_does_not_come_blocks_nobody(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A dead process that is first in the queue costs one short claim window."""
        ticket = "a-writer-that-never-comes-back"
        async with task_actors(store) as actors:
            first = await actors.enters(locks.mutex("c", 1), "first")
            assert not await others.acquire_writer_lock("c", 1, ticket)
            second = await actors.queues(locks.mutex("c", 1), "second")
            # The resource is offered to the dead writer; when its claim window is over,
            # the second waiter must get it without a further release.
            await first.leave()
            await second.inside()
