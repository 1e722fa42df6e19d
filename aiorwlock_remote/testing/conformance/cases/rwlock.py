"""Readers together, a writer alone."""

from __future__ import annotations

from aiorwlock_remote import Locks
from aiorwlock_remote.testing.conformance.actors import party
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


class RWLockCases(Cases):
    """Readers together, a writer alone."""

    async def test_readers_share(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Any number of readers hold it together, whatever process they are of."""
        async with party(store) as guests:
            inside = [
                await guests.enters(each.rwlock("c", 7).reader)
                for each in (locks, others, locks, others)
            ]
            assert len((await locks.rwlock("c", 7).info()).holders) == 4
            for guest in inside:
                held = await guest.inside()
                held.check()
                assert held.mode == "read"
                await guest.leave()
            assert not await locks.rwlock("c", 7).locked()

    async def test_a_writer_is_alone(self, locks: Locks, others: Locks) -> None:
        """While a writer is inside neither a reader nor a writer gets in."""
        async with locks.rwlock("catalog", 7).writer as held:
            assert held.mode == "write"
            assert await others.rwlock("catalog", 7).reader.try_acquire() is None
            assert await others.rwlock("catalog", 7).writer.try_acquire() is None

    async def test_the_last_reader_lets_the_writer_in(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A writer waits for every reader, not only for some."""
        async with party(store) as guests:
            reader, writer = locks.rwlock("c", 7).reader, others.rwlock("c", 7).writer
            first = await guests.enters(reader, "r1")
            second = await guests.enters(others.rwlock("c", 7).reader, "r2")
            third = await guests.enters(reader, "r3")
            waiting = await guests.queues(writer, "w")
            for guest in (second, first):
                await guest.leave()
                assert await locks.rwlock("c", 7).writer.try_acquire() is None
                assert waiting.waits
            await third.leave()
            await waiting.inside()
            assert guests.order[-1] == "w"

    async def test_readers_wait_for_the_writer(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Readers that come while a writer is inside enter when it leaves."""
        async with party(store) as guests:
            writer = await guests.enters(locks.rwlock("c", 7).writer, "w")
            readers = [
                await guests.queues(each.rwlock("c", 7).reader, "r")
                for each in (locks, others)
            ]
            assert all(reader.waits for reader in readers)
            await writer.leave()
            for reader in readers:
                await reader.inside()
            assert len((await locks.rwlock("c", 7).info()).holders) == 2

    async def test_a_reader_gone_leaves_the_others(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Releasing one reader ends that reader alone."""
        async with party(store) as guests:
            first, second, third = [
                await guests.enters(each.rwlock("c", 7).reader)
                for each in (locks, others, locks)
            ]
            await second.leave()
            left = [await first.inside(), await third.inside()]
            shown = await others.rwlock("c", 7).info()
            assert {h.holder for h in shown.holders} == {held.holder for held in left}
            assert set(shown.active_readers) == {held.holder for held in left}
            for held in left:
                await held.extend()

    async def test_both_spellings(self, locks: Locks, others: Locks) -> None:
        """``reader_lock`` and ``writer_lock``, aiorwlock's names, are the same."""
        lock = locks.rwlock("c", 7)
        async with lock.reader_lock as held:
            assert held.mode == "read"
        async with lock.writer_lock as held:
            assert held.mode == "write"
            assert await others.rwlock("c", 7).reader_lock.try_acquire() is None
