"""Cases: which of the waiters gets the lock next."""

from __future__ import annotations

from aiorwlock_remote.testing.conformance.cases.base import Cases


class FairnessCases(Cases):
    """Phase-fair order is the default; other policies favour readers or writers."""

    async def test_processes_take_turns(self) -> None:
        """If two processes have several waiters each, they get the lock in turn."""
        await self.actors.enters(self.locks.mutex("order", 1), "first")
        await self.actors.queues(self.locks.mutex("order", 1), "a1")
        await self.actors.asks(self.locks.mutex("order", 1), "a2")
        await self.actors.asks(self.locks.mutex("order", 1), "a3")
        await self.actors.queues(self.others.mutex("order", 1), "b1")
        await self.actors.asks(self.others.mutex("order", 1), "b2")
        await self.actors.finish()
        # A process is served one task at a time, and then queues behind the other one.
        assert self.actors.order[:3] == ["first", "a1", "b1"]
        assert self.actors.order[3:] == ["a2", "b2", "a3"]

    async def test_try_acquire_does_not_overtake(self) -> None:
        """``try_acquire`` does not overtake a waiter that is first in the queue."""
        reader = await self.actors.enters(self.locks.rwlock("c", 1).reader, "r")
        writer = await self.actors.queues(self.others.rwlock("c", 1).writer, "w")
        # A reader could join the live read phase if no writer waited, even in the
        # process that holds it.
        assert await self.locks.rwlock("c", 1).reader.try_acquire() is None
        assert await self.others.rwlock("c", 1).reader.try_acquire() is None
        await reader.hand_over_to(writer)

    async def test_new_readers_queue_behind_a_writer(self) -> None:
        """Readers that ask after a waiting writer enter after that writer."""
        first = await self.actors.enters(self.locks.rwlock("c", 1).reader, "r1")
        writer = await self.actors.queues(self.others.rwlock("c", 1).writer, "w")
        late = await self.actors.queues(self.locks.rwlock("c", 1).reader, "r2")
        later = await self.actors.queues(self.others.rwlock("c", 1).reader, "r3")
        await first.hand_over_to(writer)
        assert late.waits
        assert later.waits
        await writer.hand_over_to(late, later)
        assert self.actors.order[:2] == ["r1", "w"]

    async def test_after_a_writer_all_waiting_readers(self) -> None:
        """When a writer leaves, all waiting readers enter before the next writer."""
        first = await self.actors.enters(self.locks.rwlock("c", 1).writer, "w1")
        second = await self.actors.queues(self.others.rwlock("c", 1).writer, "w2")
        readers = [
            await self.actors.queues(each.rwlock("c", 1).reader, "r")
            for each in (self.locks, self.others)
        ]
        readers.append(await self.actors.asks(self.locks.rwlock("c", 1).reader, "r"))
        await first.hand_over_to(*readers)
        # Only the readers that waited at the end of the write phase pass the
        # writer.
        assert second.waits
        assert await self.others.rwlock("c", 1).reader.try_acquire() is None
        for reader in readers:
            await reader.leave()
        await second.inside()
        assert self.actors.order == ["w1", "r", "r", "r", "w2"]

    async def test_the_oldest_writer_is_next(self) -> None:
        """Of several waiting writers, the one that asked first enters first."""
        async with self.store.connect() as third:
            await self.actors.enters(self.locks.rwlock("c", 1).reader, "r")
            for name, each in (("w1", self.others), ("w2", third), ("w3", self.locks)):
                await self.actors.queues(each.rwlock("c", 1).writer, name)
            await self.actors.finish()
        assert self.actors.order == ["r", "w1", "w2", "w3"]

    async def test_who_comes_back_at_once_goes_behind(self) -> None:
        """A task that releases and asks again enters after all that waited before."""
        lock = self.locks.mutex("order", 1)
        async with self.store.connect() as third:
            held = await lock.acquire()
            await self.actors.queues(self.others.mutex("order", 1), "a")
            await self.actors.queues(third.mutex("order", 1), "b")
            self.actors.all_may_leave()
            assert await held.release()
            again = await self.actors.asks(lock, "again")
            again.may_leave()
            await self.actors.finish()
        assert self.actors.order == ["a", "b", "again"]

    async def test_nobody_starves(self) -> None:
        """A waiting writer enters although new readers keep asking."""
        before = await self.actors.enters(self.locks.rwlock("c", 1).reader, "r0")
        writer = await self.actors.queues(self.others.rwlock("c", 1).writer, "w")
        coming = [
            await self.actors.asks(self.locks.rwlock("c", 1).reader, f"r{number}")
            for number in range(1, 6)
        ]
        assert all(reader.waits for reader in coming)
        await before.hand_over_to(writer)

    async def test_policy_writer(self) -> None:
        """With ``policy="writer"``, writers pass readers that asked before them."""
        mine = self.locks.rwlock("c", 1, policy="writer")
        theirs = self.others.rwlock("c", 1, policy="writer")
        first = await self.actors.enters(mine.writer, "w1")
        reader = await self.actors.queues(mine.reader, "r")
        second = await self.actors.queues(theirs.writer, "w2")
        await first.hand_over_to(second)
        assert reader.waits
        await second.hand_over_to(reader)
        assert self.actors.order == ["w1", "w2", "r"]

    async def test_policy_reader(self) -> None:
        """With ``policy="reader"``, new readers enter although a writer waits."""
        mine = self.locks.rwlock("c", 1, policy="reader")
        first = await self.actors.enters(mine.reader, "r1")
        writer = await self.actors.queues(self.others.rwlock("c", 1).writer, "w")
        second = await self.actors.enters(mine.reader, "r2")
        await first.leave()
        assert writer.waits
        await second.hand_over_to(writer)
        assert self.actors.order == ["r1", "r2", "w"]

    async def test_an_unfair_mutex_barges(self) -> None:
        """With ``fair=False``, an acquire may take a lock offered to a dead waiter."""
        ticket = "a-writer-that-never-comes-back"
        first = await self.actors.enters(self.locks.mutex("c", 1), "first")
        assert not await self.others.acquire_writer_lock("c", 1, ticket)
        await first.leave()
        # The pending writer is first now. It has not come yet, and never will.
        await self.take_at_once(self.others.mutex("c", 1, fair=False))

    async def test_who_does_not_come_blocks_nobody(self) -> None:
        """A dead process that is first in the queue costs one short claim window."""
        ticket = "a-writer-that-never-comes-back"
        first = await self.actors.enters(self.locks.mutex("c", 1), "first")
        assert not await self.others.acquire_writer_lock("c", 1, ticket)
        second = await self.actors.queues(self.locks.mutex("c", 1), "second")
        # The resource is offered to the dead writer; when its claim window is over,
        # the second waiter must get it without a further release.
        await first.hand_over_to(second)
