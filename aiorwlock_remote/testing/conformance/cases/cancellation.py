"""Cases: a cancelled acquire leaves no grant; a cancelled release is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, ClassVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import MODES, AnyLock, lock_of

# Turns of the loop before a cancellation: before, during and after the request.
CANCEL_POINTS = 12


async def _with(lock: AnyLock) -> None:
    async with lock:
        await checkpoint()


async def _await(lock: AnyLock) -> None:
    held = await lock.acquire()
    await held.release()


async def _try(lock: AnyLock) -> None:
    await Cases.take_at_once(lock)


FORMS: dict[str, Callable[[AnyLock], Coroutine[object, object, None]]] = {
    "with": _with,
    "await": _await,
    "try": _try,
}


class CancellationCases(Cases):
    """A caller that is cancelled anywhere leaves no grant and no queue entry."""

    @pytest.mark.parametrize("mode", MODES)
    async def test_a_cancelled_waiter_leaves_no_place(self, mode: str) -> None:
        """A cancelled waiter leaves the queue, and the next one gets the lock."""
        first = await self.actors.enters(self.locks.mutex("order", 1), "first")
        lock = lock_of(self.others, mode, ("order", 1))
        waiting = await self.actors.queues(lock, "cancelled")
        waiting.scope.cancel()
        assert await waiting.gone() is None
        assert waiting.scope.cancelled_caught
        await self.actors.queue_has(lock, 0)
        await first.leave()
        next_one = await self.actors.enters(lock, "next")
        await next_one.leave()
        await self.actors.nothing_left(lock)
        assert self.actors.order == ["first", "next"]

    async def test_all_waiters_cancelled_at_once(self) -> None:
        """Waiters that are cancelled all at once leave no grant and no queue entry."""
        first = await self.actors.enters(self.locks.mutex("order", 1))
        lock = self.others.rwlock("order", 1)
        await self.actors.queues(lock.writer)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(_with, (lock.reader, lock.writer)[number % 2])
                await self.actors.queue_has(lock.writer, 2)
                scope.cancel()
        assert scope.cancelled_caught
        await self.actors.queue_has(lock.writer, 1)
        self.actors.all_may_leave()
        await first.gone()
        await self.actors.nothing_left(lock.writer)

    @pytest.mark.parametrize("form", ["with", "await", "try"])
    async def test_cancelled_at_every_step(self, form: str) -> None:
        """An acquire that is cancelled at any point leaves the free lock free."""
        lock = self.locks.mutex("order", 1)
        for steps in range(CANCEL_POINTS):
            await self.cancelled_after(steps, FORMS[form], lock)
            await self.actors.nothing_left(lock)
        await self.take_at_once(self.others.mutex("order", 1))

    async def test_cancelled_at_every_step_of_a_hand_over(self) -> None:
        """A waiter that is cancelled while it is granted does not keep the lock."""
        lock = self.others.mutex("order", 1)
        for steps in range(CANCEL_POINTS):
            first = await self.actors.enters(self.locks.mutex("order", 1))
            waiting = await self.actors.queues(lock)
            first.may_leave()
            for _ in range(steps):
                await checkpoint()
            waiting.scope.cancel()
            await waiting.gone()
            await first.gone()
            await self.actors.nothing_left(lock)

    async def test_cancelled_body_releases(self) -> None:
        """Cancelling an ``async with`` releases its lock; the error propagates."""
        with anyio.CancelScope() as scope:
            async with self.locks.mutex("order", 1):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        held = await self.others.mutex("order", 1).acquire(
            timeout=self.harness.patience
        )
        await held.release()

    async def test_cancelled_release_is_carried_out(self) -> None:
        """A release whose caller is cancelled is carried out all the same."""
        for steps in range(CANCEL_POINTS // 2):
            held = await self.locks.mutex("order", 1).acquire()
            await self.cancelled_after(1 + steps, held.release)
            with anyio.CancelScope() as scope:
                async with self.locks.mutex("order", 2):
                    # The release at the end of the body starts already cancelled.
                    scope.cancel()
            for number in (1, 2):
                await self.actors.nothing_left(self.others.mutex("order", number))

    async def test_move_on_after(self) -> None:
        """``move_on_after`` ends an ``acquire`` without a grant or an error."""
        async with self.others.mutex("order", 1):
            with anyio.move_on_after(0.05) as scope:
                async with self.locks.mutex("order", 1):
                    raise AssertionError("it was taken")
            assert scope.cancelled_caught
            await self.enter_and_leave(self.locks.mutex("order", 2).acquire(timeout=0))


def native_loops() -> list[Any]:
    """Return asyncio's own event loop and, if uvloop is installed, that, as parameters
    of ``anyio_backend``.
    """
    return [
        pytest.param(("asyncio", {"use_uvloop": uses_uvloop}), id=name)
        for name, uses_uvloop in (("asyncio", False), ("uvloop", True))
        if find_spec(name)
    ]


class NativeCancellationCases(Cases):
    """Cancellation by ``Task.cancel()`` or asyncio's timeouts leaves nothing held."""

    pytestmark: ClassVar[Any] = [
        pytest.mark.anyio,
        pytest.mark.parametrize("anyio_backend", native_loops()),
    ]

    @pytest.mark.parametrize("times", [1, 2, 5])
    async def test_task_cancel(self, times: int) -> None:
        """A waiter that is cancelled 1 to 5 times leaves no grant or queue entry."""
        lock = self.others.mutex("order", 1)
        first = await self.actors.enters(self.locks.mutex("order", 1))
        task = asyncio.ensure_future(FORMS["with"](lock))
        await self.actors.queue_has(lock, 1)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.actors.queue_has(lock, 0)
        await first.leave()
        await self.actors.nothing_left(lock)

    @pytest.mark.parametrize("form", list(FORMS))
    async def test_task_cancel_twice_at_every_step(self, form: str) -> None:
        """A task cancelled twice at any point of an acquire leaves the lock free."""
        lock = self.locks.mutex("order", 1)
        for steps in range(CANCEL_POINTS):
            for between in (0, 1, 3):
                task = asyncio.ensure_future(FORMS[form](lock))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                for _ in range(between):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None
                await self.actors.nothing_left(lock)
        await self.enter_and_leave(self.others.mutex("order", 1).acquire(timeout=0))

    async def test_asyncio_timeout(self) -> None:
        """``asyncio.timeout`` and ``wait_for`` end an acquire, and leave no grant."""
        async with self.others.mutex("order", 1):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self.locks.mutex("order", 1).acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_hold(self.locks.mutex("order", 1)), 0.05)
        held = await asyncio.wait_for(_hold(self.locks.mutex("order", 1)), 20)
        # ``wait_for`` acquired it in a task of its own, which has ended.
        held.check()
        await held.release()


async def _hold(lock: AnyLock) -> Held:
    return await lock.acquire()
