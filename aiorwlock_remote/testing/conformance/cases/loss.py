"""Losing a grant: the body is cancelled, and told why."""

from __future__ import annotations

import time

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, LockLost, Locks
from aiorwlock_remote.testing.conformance.actors import Told, party, until
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.mutex import MODES
from aiorwlock_remote.testing.conformance.harness import (
    AnyLock,
    StoreUnderTest,
    lock_of,
)


async def force(lock: AnyLock, others: Locks) -> None:
    """Break whoever holds it."""
    assert await others.force_release(await lock.info(), reason="test") == 1


def lost(held: Held) -> Told:
    """Asks whether the grant knows that it is lost."""

    async def told() -> bool:
        return held.lost is not None

    return told


class LossCases(Cases):
    """Losing a grant: the body is cancelled, and told why."""

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("mode", MODES)
    async def test_loss_cancels_the_body(
        self, locks: Locks, others: Locks, mode: str
    ) -> None:
        """A broken holder's body is cancelled, and ``LockLost`` says why."""
        lock = lock_of(locks, mode, ("order", 1))
        with pytest.raises(LockLost) as caught:
            async with lock as held:
                await force(lock, others)
                await anyio.sleep_forever()
        assert caught.value.reason == "forced"
        assert caught.value.resource == "order/1"
        assert caught.value.fence == held.fence
        assert caught.value.mode == held.mode
        assert held.lost == "forced"
        assert held.expires_in == 0.0
        assert not await others.mutex("order", 1).locked()
        async with lock:  # the same task may come again
            pass

    async def test_loss_found_at_the_end(self, locks: Locks, others: Locks) -> None:
        """A body that ends before it is told still learns that it was unprotected."""
        lock = locks.mutex("order", 1, lease=None)
        with pytest.raises(LockLost) as caught:
            async with lock:
                await force(lock, others)
        assert caught.value.reason == "forced"

    async def test_own_error_goes_first(self, locks: Locks, others: Locks) -> None:
        """The body's own error is never masked by the loss."""
        lock = locks.mutex("order", 1, lease=None)
        with pytest.raises(ValueError, match="mine"):
            async with lock:
                await force(lock, others)
                raise ValueError("mine")

    @pytest.mark.usefixtures("renewed_often")
    async def test_own_error_while_cancelled(self, locks: Locks, others: Locks) -> None:
        """An error raised while the body is being cancelled passes, too."""
        lock = locks.mutex("order", 1)
        with pytest.raises(ValueError, match="mine"):
            async with lock:
                await force(lock, others)
                try:
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("mine")

    async def test_cancelled_from_outside_stays_cancelled(
        self, locks: Locks, others: Locks
    ) -> None:
        """Loss does not swallow a cancellation that came from somebody else."""
        lock = locks.mutex("order", 1, lease=None)
        reached = False
        with anyio.CancelScope() as scope:
            async with lock:
                await force(lock, others)
                scope.cancel()
                await anyio.sleep_forever()
            reached = True
        assert scope.cancelled_caught
        assert not reached

    @pytest.mark.usefixtures("renewed_often")
    async def test_on_lost_flag(self, locks: Locks, others: Locks) -> None:
        """``on_lost="flag"`` lets the body run on; the grant says that it is lost."""
        lock = locks.mutex("order", 1, on_lost="flag")
        async with lock as held:
            await force(lock, others)
            await until(lost(held), self.harness.patience)
            assert held.lost == "forced"
            assert not held.valid
            with pytest.raises(LockLost):
                held.check()

    @pytest.mark.usefixtures("renewed_often")
    async def test_on_lost_callable(self, locks: Locks, others: Locks) -> None:
        """A callable is called once, with the grant; the body runs on."""
        told: list[Held] = []
        called = anyio.Event()

        def on_lost(held: Held) -> None:
            told.append(held)
            called.set()

        lock = locks.mutex("order", 1, on_lost=on_lost)
        async with lock as held:
            await force(lock, others)
            await called.wait()
            await checkpoint()
        assert told == [held]
        assert held.lost == "forced"

    @pytest.mark.usefixtures("renewed_often")
    async def test_an_awaited_grant_is_not_cancelled(
        self, locks: Locks, others: Locks
    ) -> None:
        """After ``await acquire()`` ``lost``, ``check`` and ``release`` tell."""
        lock = locks.mutex("order", 1)
        held = await lock.acquire()
        await force(lock, others)
        await until(lost(held), self.harness.patience)
        assert held.lost == "forced"
        with pytest.raises(LockLost):
            held.check()
        with pytest.raises(LockLost):
            await held.extend()
        with pytest.raises(LockLost) as caught:
            await held.release()
        assert caught.value.reason == "forced"

    @pytest.mark.usefixtures("renewed_often")
    async def test_guard_cancels_what_it_guards(
        self, locks: Locks, others: Locks
    ) -> None:
        """``guard`` ends with ``LockLost`` when the grant is lost meanwhile."""
        lock = locks.mutex("order", 1)
        held = await lock.acquire()
        await force(lock, others)
        with pytest.raises(LockLost) as caught:
            await held.guard(anyio.sleep_forever())
        assert caught.value.reason == "forced"
        with pytest.raises(LockLost):
            await held.guard(checkpoint())

    async def test_guard_gives_the_result(self, locks: Locks) -> None:
        """``guard`` gives what it awaited, and passes its errors."""

        async def work(error: Exception | None) -> int:
            await checkpoint()
            if error is not None:
                raise error
            return 42

        async with locks.mutex("order", 1) as held:
            assert await held.guard(work(None)) == 42
            with pytest.raises(ValueError, match="mine"):
                await held.guard(work(ValueError("mine")))
            held.check()

    @pytest.mark.usefixtures("renewed_often")
    async def test_one_of_many_readers_is_lost(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Breaking one reader ends that one; the others read on."""
        async with party(store) as guests:
            lock = locks.rwlock("c", 1).reader
            first = await guests.enters(lock)
            seen = await lock.info()
            second = await guests.enters(lock)
            assert await others.force_release(seen, reason="test") == 1
            error = await first.gone()
            assert isinstance(error, LockLost)
            assert error.reason == "forced"
            held = await second.inside()
            await held.extend()
            held.check()

    async def test_max_hold(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """However well it is renewed, a grant ends after ``max_hold``."""
        lock = locks.mutex("order", 1, lease=30, max_hold=self.harness.short)
        async with party(store) as guests:
            first = await guests.enters(lock)
            waiting = await guests.invite(others.mutex("order", 1))
            error = await first.gone()
            assert isinstance(error, LockLost)
            assert error.reason == "stalled"
            await waiting.inside()

    @pytest.mark.parametrize("mode", MODES)
    async def test_max_hold_gives_it_back(
        self, store: StoreUnderTest, locks: Locks, others: Locks, mode: str
    ) -> None:
        """Also a grant that no body holds: its lease need not run out."""
        lock = lock_of(
            locks, mode, ("order", 1), lease=None, max_hold=self.harness.short
        )
        held = await lock.acquire()
        async with party(store) as guests:
            waiting = await guests.invite(others.mutex("order", 1))
            await waiting.inside()
            assert held.lost == "stalled"
            with pytest.raises(LockLost):
                await held.release()
            await others.mutex("order", 1).info()  # after all that was sent before
            assert (await waiting.inside()).valid

    async def test_max_stall(self, locks: Locks) -> None:
        """With ``max_stall`` a loop that hangs for longer loses the grant."""
        lock = locks.mutex("order", 1, lease=30, max_stall=0.2)
        with pytest.raises(LockLost) as caught:
            async with lock:
                time.sleep(0.5)  # noqa: ASYNC251 - the stall
                await anyio.sleep_forever()
        assert caught.value.reason == "stalled"
