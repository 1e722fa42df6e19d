"""Cases: a semaphore has so many holders and no more, in the order of arrival."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import ClassVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import ConfigurationError, LockLost, Locks, LockTimeout, Semaphore
from aiorwlock_remote.core.names import SEMAPHORE
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import CANCEL_POINTS
from aiorwlock_remote.testing.conformance.harness import Harness, Name

ROUNDS, LIMIT = 30, 2


def api(locks: Locks, limit: int = LIMIT, **options: float | None) -> Semaphore:
    """Return the semaphore of these cases."""
    if "lease" in options:
        return locks.semaphore("api", "stripe", limit, lease=options["lease"])
    return locks.semaphore("api", "stripe", limit)


class SemaphoreCases(Cases):
    """Up to ``limit`` clients hold a permit; the next waits for its turn."""

    @classmethod
    def applies_to(cls, harness: Harness) -> bool:
        return super().applies_to(harness) and harness.has_semaphores

    async def test_one_more_than_the_limit_waits(self) -> None:
        """``limit`` tasks of several clients hold a permit, and one more waits."""
        first = await self.actors.enters(api(self.locks), "first")
        await self.actors.enters(api(self.others), "second")
        assert await api(self.locks).try_acquire() is None
        assert await api(self.locks).locked()
        with pytest.raises(LockTimeout) as caught:
            await api(self.others).acquire(timeout=0)
        assert caught.value.mode == "permit"
        assert len(caught.value.holders) == LIMIT
        third = await self.actors.queues(api(self.others), "third")
        await first.hand_over_to(third)
        await self.actors.finish()
        await self.actors.nothing_left(api(self.locks))

    async def test_each_permit_has_its_own_fence(self) -> None:
        """Fences tell in which order the permits were given out."""
        each = (self.locks, self.others, self.others, self.locks)
        actors = [await self.actors.enters(api(locks, 4)) for locks in each]
        fences = [(await actor.inside()).fence for actor in actors]
        assert fences == sorted(set(fences))

    async def test_permits_of_one_step_have_fences_of_their_own(self) -> None:
        """Also if a store that chooses the fences itself counts steps, not permits."""
        seen: list[list[int]] = []
        for _ in range(3):
            actors = [await self.actors.asks(api(self.locks, 9)) for _ in range(9)]
            seen.append([(await actor.inside()).fence for actor in actors])
            for actor in actors:
                await actor.leave()
        assert len({fence for turn in seen for fence in turn}) == 27, seen
        assert all(max(one) < min(two) for one, two in pairwise(seen)), seen

    async def test_in_the_order_of_arrival(self) -> None:
        """A free permit goes to the client that has waited longest."""
        async with self.store.connect() as third:
            holding = [
                await self.actors.enters(api(self.locks), f"h{n}") for n in range(LIMIT)
            ]
            waiting = [
                await self.actors.queues(api(each), name)
                for each, name in ((self.others, "a"), (third, "b"), (self.locks, "c"))
            ]
            assert await api(self.others).try_acquire() is None
            for holder, waiter in zip((*holding, waiting[0]), waiting, strict=True):
                await holder.hand_over_to(waiter)
            await self.actors.finish()
        assert self.actors.order == ["h0", "h1", "a", "b", "c"]

    async def test_who_was_served_goes_behind_others(self) -> None:
        """A client with two tasks gets one permit, and then another client one."""
        async with self.store.connect() as third:
            holding = [
                await self.actors.enters(api(self.locks), f"h{n}") for n in range(LIMIT)
            ]
            one = await self.actors.queues(api(self.others), "a1")
            two = await self.actors.asks(api(self.others), "a2")
            other = await self.actors.queues(api(third), "b1")
            await holding[0].hand_over_to(one)
            assert two.waits
            await holding[1].hand_over_to(other)
            assert two.waits
            await one.hand_over_to(two)
            await self.actors.finish()

    async def test_one_request_takes_several(self) -> None:
        """The tasks of a client ask together, and take all permits that are free."""
        strict = await self.actors.enters(api(self.locks, 1))
        many = [await self.actors.queues(api(self.others, 9))]
        many += [await self.actors.asks(api(self.others, 9)) for _ in range(8)]
        before = self.others.statistics().requests_sent
        await strict.hand_over_to(*many)
        # One, and perhaps a poll that came just before.
        assert self.others.statistics().requests_sent - before <= 2
        shown = await api(self.locks, 9).info()
        assert (len(shown.holders), shown.permits_held, shown.limit) == (9, 9, 9)
        assert len({holder.fence for holder in shown.holders}) == 9

    async def test_a_dead_holders_permit_comes_back(self) -> None:
        """When its lease has ended; others hold theirs meanwhile."""
        dead = await api(self.locks, lease=self.harness.short).acquire()
        dead.detach()
        kept = await self.actors.enters(api(self.others))
        async with api(self.others).acquire(timeout=self.harness.patience):
            (await kept.inside()).check()

    async def test_a_cancelled_waiter_leaves_nothing(self) -> None:
        """Neither a permit nor a queue entry; the next waiter is served."""
        holding = [await self.actors.enters(api(self.locks)) for _ in range(LIMIT)]
        gone = await self.actors.queues(api(self.others))
        gone.scope.cancel()
        await gone.gone()
        await self.actors.queue_has(api(self.locks), 0)
        stays = await self.actors.queues(api(self.others))
        leaves = await self.actors.asks(api(self.others))
        leaves.scope.cancel()
        await holding[0].hand_over_to(stays)
        await self.actors.finish()
        await self.actors.nothing_left(api(self.others))

    async def test_cancelled_at_the_moment_of_a_release(self) -> None:
        """A waiter that is cancelled while it is granted keeps no permit."""
        lock = api(self.others, 1)
        for steps in range(0, CANCEL_POINTS, 2):
            first = await self.actors.enters(api(self.locks, 1))
            waiting = await self.actors.queues(lock)
            first.may_leave()
            for _ in range(steps):
                await checkpoint()
            waiting.scope.cancel()
            await waiting.gone()
            await first.gone()
            await self.actors.nothing_left(lock)

    async def test_the_least_limit_counts(self) -> None:
        """The least limit of those that hold a permit and of those that wait."""
        strict = await self.actors.enters(api(self.others, 1))
        assert await api(self.locks, 3).try_acquire() is None
        waiting = await self.actors.queues(api(self.locks, 3))
        more = await self.actors.asks(api(self.locks, 3))
        await strict.hand_over_to(waiting, more)
        assert await api(self.others, 1).try_acquire() is None
        shown = await api(self.others).info()
        assert (shown.limit, shown.permits_held) == (3, 2)
        await self.actors.finish()
        await self.take_at_once(api(self.others, 1))

    async def test_limits_that_differ_are_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Once, by the client whose limit does not count."""
        strict = await self.actors.enters(api(self.others, 1))
        with caplog.at_level(logging.WARNING, "aiorwlock_remote.acquire"):
            waiting = await self.actors.queues(api(self.locks, 3))
            with pytest.raises(LockTimeout):
                await api(self.locks, 3).acquire(timeout=0.01)
            await strict.hand_over_to(waiting)
        told = [record for record in caplog.records if "limits_differ" in record.msg]
        assert [record.__dict__["limit"] for record in told] == [1]

    async def test_extend_and_release(self) -> None:
        """A permit is extended and released like any grant."""
        held = await api(self.locks).acquire()
        assert (held.mode, held.resource) == ("permit", "api/stripe")
        await held.extend()
        held.check()
        with pytest.raises(ConfigurationError):
            await held.downgrade()
        with pytest.raises(ConfigurationError):
            await held.upgrade()
        held.check()
        assert await held.release()
        await self.actors.nothing_left(api(self.others))

    async def test_passed_on(self) -> None:
        """Adopting takes a permit over; no other client is let in meanwhile."""
        held = await api(self.locks, 1).acquire()
        waiting = await self.actors.queues(api(self.locks, 1))
        adopted = await self.others.adopt(held.detach())
        assert adopted.mode == "permit"
        assert adopted.fence > held.fence
        assert waiting.waits
        await adopted.release()
        await waiting.inside()

    @pytest.mark.usefixtures("renewed_often")
    async def test_a_broken_holder_learns_of_it(self) -> None:
        """``list`` shows permits, ``force_release`` ends one, and its body ends."""
        async with api(self.others) as other:
            with pytest.raises(LockLost) as caught:
                async with api(self.locks) as held:
                    (shown,) = [seen async for seen in self.others.list("api")]
                    assert (shown.limit, shown.semaphore) == (LIMIT, True)
                    mine = [h for h in shown.holders if h.holder == held.holder]
                    others = [h for h in shown.holders if h.holder == other.holder]
                    assert [h.mode for h in mine + others] == ["permit", "permit"]
                    await self.break_one(shown.holders.index(mine[0]))
                    await anyio.sleep_forever()
            assert caught.value.reason == "forced"
            other.check()
            await other.extend()

    async def break_one(self, place: int) -> None:
        """Force the holder at this place of the list, as another process."""
        shown = await api(self.others).info()
        one = replace(shown, holders=(shown.holders[place],))
        assert await self.others.force_release(one, reason="test") == 1

    async def test_stale_permits(self) -> None:
        """A permit without a lease looks abandoned; one that is renewed does not."""
        held = await api(self.locks, lease=None).acquire()
        held.detach()
        async with api(self.others):
            (stale,) = [seen async for seen in self.others.stale(resource_type="api")]
            assert [one.holder for one in stale.holders] == [held.holder]
            assert await self.others.force_release(stale, reason="test") == 1
            assert [seen async for seen in self.others.stale()] == []

    async def test_a_lock_of_the_same_name_is_another(self) -> None:
        """A semaphore and a mutex of one name do not exclude each other."""
        async with api(self.locks, 1), self.others.mutex("api", "stripe") as held:
            held.check()
            seen = [one async for one in self.others.list("api")]
            assert sorted(one.semaphore for one in seen) == [False, True]
            assert {one.resource_id for one in seen} == {"stripe"}

    @pytest.mark.parametrize("seed", [1, 2])
    async def test_never_more_than_the_limit(self, seed: int) -> None:
        """Tasks of two clients come, wait, are cancelled and leave at random."""
        chance, inside, most = Random(seed), 0, 0

        async def visit(lock: Semaphore, patience: float) -> None:
            nonlocal inside, most
            with anyio.move_on_after(patience):
                async with lock:
                    inside += 1
                    most = max(most, inside)
                    try:
                        for _ in range(chance.randrange(6)):
                            await checkpoint()
                    finally:
                        inside -= 1

        async with anyio.create_task_group() as group:
            for _ in range(ROUNDS):
                lock = api(chance.choice((self.locks, self.others)))
                # A third of them may be cancelled at any point.
                patience = chance.choice((0.01, 60.0, 60.0))
                group.start_soon(visit, lock, patience)
                for _ in range(chance.randrange(4)):
                    await checkpoint()
        assert 0 < most <= LIMIT
        await self.actors.nothing_left(api(self.locks))


class LostPermitsCases(Cases):
    """The word ``permits`` in the mutex record of a semaphore proves nothing alone."""

    foreign = True
    name: ClassVar[Name] = "api" + SEMAPHORE, 7

    @classmethod
    def applies_to(cls, harness: Harness) -> bool:
        return super().applies_to(harness) and harness.has_semaphores

    @pytest.mark.parametrize("lease", [30.0, None])
    async def test_permits_without_a_doorman_keep_nobody_out(
        self, lease: float | None
    ) -> None:
        """If a job deletes the doorman, its permits are lost, and new ones are free."""
        mine, theirs = (
            locks.semaphore("api", 7, 1, lease=lease, on_lost="flag")
            for locks in (self.locks, self.others)
        )
        lost = await mine.acquire()
        self.store.foreigner.clean(self.name)
        # Our word, and never another program's: it may be taken out without a proof.
        assert self.store.foreigner.read(self.name) == "permits"
        assert not await theirs.locked()
        assert [seen async for seen in self.others.stale()] == []
        with pytest.raises(LockLost) as caught:
            await lost.extend()
        assert caught.value.reason == "forced"
        lost = await theirs.acquire(timeout=0)
        self.store.foreigner.clean(self.name)
        async with mine.acquire(timeout=0) as held:
            assert held.fence > lost.fence
            assert self.store.foreigner.read(self.name) == "permits"
            assert not await lost.release()
            assert await theirs.try_acquire() is None
        assert self.store.foreigner.read(self.name) is None
