"""Cases: fences rise, so that a protected resource can refuse stale holders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from math import floor

from aiorwlock_remote import Held
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import lock_of


def rising(fences: list[int]) -> bool:
    """Return True if each fence is greater than the one before."""
    return all(one < two for one, two in pairwise(fences))


class FenceCases(Cases):
    """Each grant carries the fence of its phase, and fences of later phases rise."""

    async def test_write_grants_rise(self) -> None:
        """Each write grant has a greater fence than every grant before it."""
        fences: list[int] = []
        for each in (self.locks, self.others, self.others, self.locks, self.others):
            for mode in ("mutex", "writer"):
                async with lock_of(each, mode, ("order", 1)) as held:
                    fences.append(held.fence)
        assert rising(fences), fences

    async def test_a_hand_over_rises(self) -> None:
        """Waiters that are granted one after the other have rising fences."""
        first = await self.actors.enters(self.locks.mutex("order", 1))
        waiting = [
            await self.actors.queues(self.locks.mutex("order", 1)),
            await self.actors.queues(self.others.mutex("order", 1)),
            await self.actors.asks(self.locks.mutex("order", 1)),
        ]
        fences = [(await first.inside()).fence]
        for leaves, enters in zip([first, *waiting], waiting, strict=False):
            await leaves.leave()
            fences.append((await enters.inside()).fence)
        assert rising(fences), fences

    async def test_readers_of_a_batch_share(self) -> None:
        """Readers that join a live read phase get the fence of that phase."""
        inside = [
            await self.actors.enters(each.rwlock("c", 1).reader)
            for each in (self.locks, self.others, self.locks)
        ]
        fences = {(await actor.inside()).fence for actor in inside}
        assert len(fences) == 1
        # A phase lives as long as any of its readers: the first may go.
        await inside[0].leave()
        late = await self.actors.enters(self.others.rwlock("c", 1).reader)
        assert {(await late.inside()).fence} == fences

    async def test_each_phase_has_its_own(self) -> None:
        """Each new phase, for reading or writing, has a greater fence."""
        fences: list[int] = []
        for side in ("reader", "writer", "reader", "reader", "writer"):
            async with lock_of(self.others, side, ("c", 1)) as held:
                fences.append(held.fence)
                assert (await self.locks.rwlock("c", 1).info()).fence == held.fence
        assert rising(fences), fences

    async def test_rises_after_an_expiry(self) -> None:
        """A grant that follows an expired grant has a greater fence."""
        held = await self.expiring()
        async with self.others.mutex("order", 1) as theirs:
            assert theirs.fence > held.fence

    async def test_rises_after_force(self) -> None:
        """A grant that follows a forcibly released one has a greater fence."""
        held = await self.locks.mutex("order", 1, on_lost="flag").acquire()
        await self.force(self.locks.mutex("order", 1))
        async with self.others.mutex("order", 1) as theirs:
            assert theirs.fence > held.fence
        assert not await held.release()

    async def test_starts_from_the_stores_clock(self) -> None:
        """The fence of a new phase is at least the store's clock in microseconds."""
        # If a failover loses the last grant of a resource, only the clock keeps the
        # next fence above the lost one.
        for mode in ("mutex", "reader") * 2:
            lock = lock_of(self.locks, mode, ("order", 1))
            clock = await self._clock()
            async with lock as held:
                assert held.fence >= clock

    async def test_each_phase_reads_the_stores_clock(self) -> None:
        """Hand-over, upgrade and ``adopt`` give fences not below the store's clock."""
        if not self.harness.each_phase_reads_the_clock:
            return
        first = await self.actors.enters(self.locks.rwlock("c", 1).writer)
        second = await self.actors.queues(self.others.rwlock("c", 1).writer)
        third = await self.actors.queues(self.locks.rwlock("c", 1).writer)
        for leaves, enters in ((first, second), (second, third)):
            clock = await self._clock()
            await leaves.leave()
            assert (await enters.inside()).fence >= clock
        await third.leave()
        held = await self.locks.rwlock("c", 1).writer.acquire()
        moves: tuple[Callable[[Held], Awaitable[Held]], ...] = (
            Held.downgrade,
            Held.upgrade,
            lambda held: self.others.adopt(held.detach()),
        )
        for move in moves:
            clock = await self._clock()
            held = await move(held)
            assert held.fence >= clock
        assert await held.release()

    async def _clock(self) -> int:
        """Return the store's clock in microseconds, or what it counts instead."""
        lock = self.others.mutex(*self.store.name())
        async with lock as held:
            updated_at = (await lock.info()).updated_at
            assert updated_at is not None
            if not self.harness.counts_fences:
                assert held.fence // MICROS >= floor(updated_at.timestamp())
            return held.fence

    async def test_outlives_the_connection(self) -> None:
        """Fences continue to rise after every ``Locks`` was closed."""
        fences: list[int] = []
        for _ in range(3):
            async with self.store.connect() as locks, locks.mutex("order", 1) as held:
                fences.append(held.fence)
        assert rising(fences), fences

    async def test_is_shown(self) -> None:
        """``info`` shows a holder's fence, and the last fence of a free lock."""
        async with self.locks.mutex("order", 1) as held:
            shown = await self.others.mutex("order", 1).info()
            assert [h.fence for h in shown.holders] == [held.fence]
        shown = await self.others.mutex("order", 1).info()
        last = held.fence if self.harness.remembers_fence else 0
        assert (shown.fence, shown.holders) == (last, ())
