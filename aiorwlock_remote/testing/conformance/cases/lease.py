"""Cases: a grant lasts for its lease, and the loss of a grant is reported."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import pairwise

import anyio
import pytest

from aiorwlock_remote import Held, LockLost, LockTimeout
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.testing.conformance.cases.base import Cases, Loop
from aiorwlock_remote.testing.conformance.harness import MODES, lock_of

SOON = 10
"""Leases within which a waiter has to enter after the end of one, on a busy machine."""


class LeaseCases(Cases):
    """A grant ends with its lease, and lasts as long as its lease is renewed."""

    async def test_expiry_lets_the_next_in(self) -> None:
        """A grant that is not renewed ends when its lease is over, not earlier."""
        clock = SystemClock()
        asked = clock.now()
        await self.expiring()
        await self.actors.enters(self.others.mutex("order", 1))
        assert clock.now() - asked >= self.harness.short

    async def test_expired_readers_let_a_writer_in(self) -> None:
        """A writer enters when the lease of the last reader has run out."""
        live = await self.actors.enters(self.locks.rwlock("c", 1).reader)
        short = self.harness.short
        assert await self.locks.acquire_readers_lock("c", 1, "gone", lease=short)
        assert await self.locks.acquire_readers_lock("c", 1, "too", lease=short)
        await live.leave()
        await self.actors.enters(self.others.rwlock("c", 1).writer)

    async def test_one_expiry_after_the_other(self) -> None:
        """Waiters whose predecessor dies in its turn enter in order, each soon after
        that lease has ended.
        """
        clock, short = SystemClock(), self.harness.short
        held = await self.locks.mutex("order", 1).acquire()
        waited = list[float]()
        async with self.store.connect() as third:
            waiting = [
                await self.actors.queues(each.mutex("order", 1, lease=short), name)
                for name, each in (("a", self.others), ("b", third), ("c", self.locks))
            ]
            await held.release()
            for dies, enters in pairwise(waiting):
                died = await dies.inside()
                # On a machine that stands still it may be lost already.
                with suppress(LockLost):
                    died.detach()
                since = clock.now()
                await enters.inside()
                waited.append(clock.now() - since)
            await self.actors.finish()
        assert self.actors.order == ["a", "b", "c"]
        # The better of two: a busy machine may hold one of them up.
        assert min(waited) <= SOON * short + self.harness.grants_more

    @pytest.mark.usefixtures("renewed_often")
    async def test_each_reader_has_its_own_lease(self) -> None:
        """A dead reader's grant ends with its lease, whatever the leases of the others
        and however often they are renewed; theirs stay.
        """
        lock, short = self.locks.rwlock("c", 1), self.harness.short
        theirs = self.others.rwlock("c", 1)
        endless = self.others.rwlock("c", 1, lease=None).reader
        living = [await self.actors.enters(each) for each in (endless, lock.reader)]
        assert await self.locks.acquire_readers_lock("c", 1, "dead", lease=short)
        ticket = (await theirs.reader.acquire()).detach()
        assert await self.locks.acquire_readers_lock("c", 1, "dead too", lease=short)

        async def three_are_left() -> bool:
            return len((await lock.reader.info()).holders) == 3

        await self.actors.until(three_are_left)
        for ended in ("dead", "dead too"):
            assert not await self.locks.release_readers_lock("c", 1, ended)
        assert await theirs.writer.try_acquire() is None
        for one in living:
            await (await one.inside()).extend()
            await one.leave()
        assert await theirs.writer.try_acquire() is None
        assert await (await self.others.adopt(ticket)).release()
        await self.take_at_once(theirs.writer)

    async def test_a_holder_is_kept(self) -> None:
        """A grant in use is renewed: after two leases it is still held."""
        kept = self.harness.kept
        async with self.locks.mutex("order", 1, lease=kept) as held:
            with pytest.raises(LockTimeout):
                await self.others.mutex("order", 1).acquire(timeout=2 * kept)
            held.check()
            assert self.lease_left(held) <= kept

    async def test_an_awaited_grant_is_kept(self) -> None:
        """A ``Held`` is renewed even if the task that acquired it has ended."""
        kept, seconds = list[Held](), self.harness.kept

        async def obtain() -> None:
            lock = self.locks.rwlock("c", 1, lease=seconds)
            kept.append(await lock.reader.acquire())

        async with anyio.create_task_group() as group:
            group.start_soon(obtain)
        with pytest.raises(LockTimeout):
            await self.others.rwlock("c", 1).writer.acquire(timeout=1.5 * seconds)
        kept[0].check()
        assert await kept.pop().release()

    async def test_without_a_lease_it_never_ends(self) -> None:
        """A grant with ``lease=None`` outlives its holder; ``stale`` lists it."""
        held = await self.locks.mutex("order", 1, lease=None).acquire()
        assert held.expires_in is None
        await self.expiring(2)
        held.detach()
        # The acquire waits for the short lease: meanwhile the endless one has not
        # ended.
        async with self.others.mutex("order", 2):
            assert await self.others.mutex("order", 1).try_acquire() is None
            (stale,) = [d async for d in self.others.stale()]
        assert (stale.resource_type, stale.resource_id) == ("order", "1")
        assert [h.holder for h in stale.holders] == [held.holder]
        assert stale.holders[0].expires_in is None
        assert await self.others.force_release(stale, reason="test") == 1
        async with self.others.mutex("order", 1).acquire(timeout=0) as theirs:
            assert theirs.fence > held.fence

    async def test_extend(self) -> None:
        """``extend`` renews a grant at once, by its own lease or by given seconds."""
        kept = self.harness.kept
        async with self.locks.mutex("order", 1, lease=kept) as held:
            await held.extend(30)
            assert 29 < self.lease_left(held) <= 30
            (holder,) = (await self.others.mutex("order", 1).info()).holders
            assert 29 < self.lease_left(holder) <= 30 + self.harness.grants_more
            await held.extend()
            assert held.valid

    async def test_no_holder_believes_too_long(self) -> None:
        """A holder's local deadline never lies after its lease's end in the store."""
        kept = self.harness.kept
        async with self.locks.mutex("order", 1, lease=kept) as held:
            for lease in (30, kept, 10, None, kept):
                await held.extend(lease)
                believed = self.lease_left(held)
                (holder,) = (await self.others.mutex("order", 1).info()).holders
                # It was asked later than believed was read; that took some time.
                assert believed <= self.lease_left(holder) + 2.0

    async def test_lock_delay(self) -> None:
        """The next grant waits ``lock_delay`` s after an expiry, but not a release."""
        clock, delay, short = SystemClock(), 0.3, self.harness.short
        lock = self.locks.mutex("order", 1, lease=short, lock_delay=delay)
        await self.enter_and_leave(lock)
        await self.enter_and_leave(self.others.mutex("order", 1).acquire(timeout=0))
        asked = clock.now()
        (await lock.acquire()).detach()
        async with self.others.mutex("order", 1):
            assert clock.now() - asked >= short + delay


class BlockedLoopCases(Cases):
    """A blocked event loop keeps its locks, because a thread renews them."""

    needs = Capability.OFF_LOOP_RENEWAL

    async def test_a_blocked_loop_keeps_its_locks(self, loop: Loop) -> None:
        """An event loop that hangs for two leases loses no grant."""
        blocked, over = threading.Event(), threading.Event()
        refused: list[bool] = []

        async def try_to_get_in() -> None:
            async with self.store.connect() as others:
                while not over.is_set():
                    held = await others.mutex("order", 1).try_acquire()
                    if blocked.is_set():
                        refused.append(held is None)
                    if held is not None:
                        await held.release()
                    await anyio.sleep(0.02)

        name, options = loop
        thread = threading.Thread(
            target=anyio.run,
            args=(try_to_get_in,),
            kwargs={"backend": name, "backend_options": options},
        )
        try:
            kept = self.harness.kept
            async with self.locks.mutex("order", 1, lease=kept) as held:
                thread.start()
                blocked.set()
                time.sleep(2 * kept)  # noqa: ASYNC251 - the very thing to be survived
                blocked.clear()
                held.check()
        finally:
            over.set()
            thread.join()
        assert refused
        assert all(refused)


LEARN = (
    ("mutex", "extend"),
    ("writer", "downgrade"),
    ("reader", "upgrade"),
    ("reader", "try_upgrade"),
)
"""Modes, and calls that learn of a loss by the reply of the store."""


class LossCases(Cases):
    """A lost grant cancels its ``async with`` body, or does what ``on_lost`` asks."""

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("mode", MODES)
    async def test_loss_cancels_the_body(self, mode: str) -> None:
        """A loss cancels ``async with``, which raises ``LockLost`` with the reason."""
        lock = lock_of(self.locks, mode, ("order", 1))
        with pytest.raises(LockLost) as caught:
            async with lock as held:
                await self.force(lock)
                await anyio.sleep_forever()
        assert (caught.value.reason, caught.value.resource) == ("forced", "order/1")
        assert (caught.value.fence, caught.value.mode) == (held.fence, held.mode)
        assert (held.lost, held.expires_in) == ("forced", 0.0)
        assert not await self.others.mutex("order", 1).locked()
        # The task that lost the lock is not taken for its holder any more.
        await self.enter_and_leave(lock)

    async def test_loss_found_at_the_end(self) -> None:
        """A loss that is noticed only after the body still raises ``LockLost``."""
        lock = self.locks.mutex("order", 1, lease=None)
        with pytest.raises(LockLost) as caught:
            async with lock:
                await self.force(lock)
        assert caught.value.reason == "forced"

    @pytest.mark.usefixtures("renewed_often")
    async def test_an_awaited_grant_is_not_cancelled(self) -> None:
        """The loss of a grant that was acquired by ``await``, not ``async with``.

        It cancels no task; the grant's methods raise ``LockLost``.
        """
        lock = self.locks.mutex("order", 1)
        held = await lock.acquire()
        await self.force(lock)
        await self.actors.until(lambda: held.lost is not None)
        assert held.lost == "forced"
        await self.all_raise(LockLost, held.check, held.extend)
        with pytest.raises(LockLost) as caught:
            await held.release()
        assert caught.value.reason == "forced"

    async def test_the_store_tells_of_the_loss(self) -> None:
        """``extend``, ``downgrade`` and ``upgrade`` of a lost grant raise ``LockLost``,
        and so do all calls after that.
        """
        for mode, call in LEARN:
            # Without a lease there are no renewals, by which it would be known before.
            name = self.store.name()
            lock = lock_of(self.locks, mode, name, lease=None, on_lost="flag")
            held = await lock.acquire()
            await self.force(lock)
            for _ in range(2):
                with pytest.raises(LockLost) as caught:
                    await getattr(held, call)()
                assert caught.value.reason == "forced"
            await self.all_raise(LockLost, held.check, held.extend, held.detach)
            assert not await held.release()
            assert not await self.others.mutex(*name).locked()

    @pytest.mark.usefixtures("renewed_often")
    async def test_one_of_many_readers_is_lost(self) -> None:
        """If one reader is forcibly released, the other readers keep their grants."""
        lock = self.locks.rwlock("c", 1).reader
        first = await self.actors.enters(lock)
        seen = await lock.info()
        second = await self.actors.enters(lock)
        assert await self.others.force_release(seen, reason="test") == 1
        error = await first.gone()
        assert isinstance(error, LockLost)
        assert error.reason == "forced"
        held = await second.inside()
        await held.extend()
        held.check()

    @pytest.mark.parametrize("mode", MODES)
    async def test_max_hold_gives_it_back(self, mode: str) -> None:
        """After ``max_hold`` seconds a grant of ``await acquire()`` is released."""
        lock = lock_of(
            self.locks, mode, ("order", 1), lease=None, max_hold=self.harness.short
        )
        held = await lock.acquire()
        waiting = await self.actors.asks(self.others.mutex("order", 1))
        await waiting.inside()
        assert held.lost == "stalled"
        with pytest.raises(LockLost):
            await held.release()
        # A request sent now is carried out after all that were sent before: if the
        # release had ended the waiter's grant, it would show.
        await self.others.mutex("order", 1).info()
        assert (await waiting.inside()).valid
