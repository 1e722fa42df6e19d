"""Cases: fences rise, so that a protected resource can refuse stale holders."""

from __future__ import annotations

from itertools import pairwise
from math import floor

from aiorwlock_remote import Locks
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.testing.conformance.actors import task_actors
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


def rising(fences: list[int]) -> bool:
    """Return True if each fence is greater than the one before."""
    return all(one < two for one, two in pairwise(fences))


class FenceCases(Cases):
    """Each grant carries the fence of its phase, and fences of later phases rise."""

    async def test_write_grants_rise(self, locks: Locks, others: Locks) -> None:
        """Each write grant has a greater fence than every grant before it."""
        fences: list[int] = []
        for each in (locks, others, others, locks, others):
            async with each.mutex("order", 1) as held:
                fences.append(held.fence)
            async with each.rwlock("order", 1).writer as held:
                fences.append(held.fence)
        assert rising(fences), fences

    async def test_a_hand_over_rises(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Waiters that are granted one after the other have rising fences."""
        async with task_actors(store) as actors:
            first = await actors.enters(locks.mutex("order", 1))
            waiting = [
                await actors.queues(locks.mutex("order", 1)),
                await actors.queues(others.mutex("order", 1)),
                await actors.asks(locks.mutex("order", 1)),
            ]
            fences = [(await first.inside()).fence]
            for leaves, enters in zip([first, *waiting], waiting, strict=False):
                await leaves.leave()
                fences.append((await enters.inside()).fence)
        assert rising(fences), fences

    async def test_readers_of_a_batch_share(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Readers that join a live read phase get the fence of that phase."""
        async with task_actors(store) as actors:
            inside = [
                await actors.enters(each.rwlock("c", 1).reader)
                for each in (locks, others, locks)
            ]
            fences = {(await actor.inside()).fence for actor in inside}
            assert len(fences) == 1
            # A phase lives as long as any of its readers: the first may go.
            await inside[0].leave()
            late = await actors.enters(others.rwlock("c", 1).reader)
            assert {(await late.inside()).fence} == fences

    async def test_each_phase_has_its_own(self, locks: Locks, others: Locks) -> None:
        """Each new phase, for reading or writing, has a greater fence."""
        fences: list[int] = []
        for side in ("reader", "writer", "reader", "reader", "writer"):
            lock = getattr(others.rwlock("c", 1), side)
            async with lock as held:
                fences.append(held.fence)
                assert (await locks.rwlock("c", 1).info()).fence == held.fence
        assert rising(fences), fences

    async def test_rises_after_an_expiry(self, locks: Locks, others: Locks) -> None:
        """A grant that follows an expired grant has a greater fence."""
        held = await locks.mutex("order", 1, lease=self.harness.short).acquire()
        held.detach()
        async with others.mutex("order", 1) as theirs:
            assert theirs.fence > held.fence

    async def test_rises_after_force(self, locks: Locks, others: Locks) -> None:
        """A grant that follows a forcibly released one has a greater fence."""
        held = await locks.mutex("order", 1, on_lost="flag").acquire()
        seen = await others.mutex("order", 1).info()
        assert await others.force_release(seen, reason="test") == 1
        async with others.mutex("order", 1) as theirs:
            assert theirs.fence > held.fence
        assert not await held.release()

    async def test_starts_from_the_stores_clock(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The fence of a new phase is at least the store's clock in microseconds."""
        # If a failover loses the last grant of a resource, only the clock keeps the
        # next fence above the lost one.
        for lock in (locks.mutex("order", 1), locks.rwlock("order", 1).reader) * 2:
            clock = await self._clock(store, others)
            async with lock as held:
                assert held.fence >= clock

    async def test_each_phase_reads_the_stores_clock(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Hand-over, upgrade and ``adopt`` give fences not below the store's clock."""
        if not self.harness.each_phase_reads_the_clock:
            return
        async with task_actors(store) as actors:
            first = await actors.enters(locks.rwlock("c", 1).writer)
            second = await actors.queues(others.rwlock("c", 1).writer)
            third = await actors.queues(locks.rwlock("c", 1).writer)
            for leaves, enters in ((first, second), (second, third)):
                clock = await self._clock(store, others)
                await leaves.leave()
                assert (await enters.inside()).fence >= clock
            await third.leave()
        held = await locks.rwlock("c", 1).writer.acquire()
        clock = await self._clock(store, others)
        held = await held.downgrade()
        assert held.fence >= clock
        clock = await self._clock(store, others)
        held = await held.upgrade()
        assert held.fence >= clock
        clock = await self._clock(store, others)
        held = await others.adopt(held.detach())
        assert held.fence >= clock
        assert await held.release()

    async def _clock(self, store: StoreUnderTest, locks: Locks) -> int:
        lock = locks.mutex(*store.name())
        async with lock as held:
            updated_at = (await lock.info()).updated_at
            assert updated_at is not None
            assert held.fence // MICROS >= floor(updated_at.timestamp())
            return held.fence

    async def test_outlives_the_connection(self, store: StoreUnderTest) -> None:
        """Fences continue to rise after every ``Locks`` was closed."""
        fences: list[int] = []
        for _ in range(3):
            async with store.connect() as locks, locks.mutex("order", 1) as held:
                fences.append(held.fence)
        assert rising(fences), fences

    async def test_is_shown(self, locks: Locks, others: Locks) -> None:
        """``info`` shows a holder's fence, and the last fence of a free lock."""
        async with locks.mutex("order", 1) as held:
            shown = await others.mutex("order", 1).info()
            assert [h.fence for h in shown.holders] == [held.fence]
        shown = await others.mutex("order", 1).info()
        last = held.fence if self.harness.remembers_fence else 0
        assert (shown.fence, shown.holders) == (last, ())
