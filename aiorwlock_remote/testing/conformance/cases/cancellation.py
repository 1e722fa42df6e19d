"""Cancelled anywhere, an acquire leaves nothing behind and a release is carried out.

asyncio's own ways to cancel, which know no scopes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, Locks
from aiorwlock_remote.testing.conformance.actors import TaskActors, task_actors
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.locks import MODES
from aiorwlock_remote.testing.conformance.harness import (
    AnyLock,
    StoreUnderTest,
    lock_of,
)

CANCEL_POINTS = 12
"""Cancelled after so many turns of the loop: before, amid and after the request."""


async def nothing_left(guests: TaskActors, lock: AnyLock) -> None:
    """Wait until nobody holds the lock and nobody waits for it."""

    async def told() -> bool:
        shown = await lock.info()
        return not shown.holders and not shown.queue

    await guests.until(told)


async def _with(lock: AnyLock) -> None:
    async with lock:
        await checkpoint()


async def _await(lock: AnyLock) -> None:
    held = await lock.acquire()
    await held.release()


async def _try(lock: AnyLock) -> None:
    held = await lock.try_acquire()
    assert held is not None
    await held.release()


FORMS: dict[str, Callable[[AnyLock], Coroutine[object, object, None]]] = {
    "with": _with,
    "await": _await,
    "try": _try,
}


class CancellationCases(Cases):
    """Cancelled anywhere, nothing is left behind."""

    @pytest.mark.parametrize("mode", MODES)
    async def test_a_cancelled_waiter_leaves_no_place(
        self, store: StoreUnderTest, locks: Locks, others: Locks, mode: str
    ) -> None:
        """A waiter that is cancelled leaves the queue; whoever comes next gets in."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1), "first")
            lock = lock_of(others, mode, ("order", 1))
            waiting = await guests.queues(lock, "cancelled")
            waiting.scope.cancel()
            assert await waiting.gone() is None
            assert waiting.scope.cancelled_caught
            await guests.places(lock, 0)
            await first.leave()
            next_one = await guests.enters(lock, "next")
            await next_one.leave()
            await nothing_left(guests, lock)
        assert guests.order == ["first", "next"]

    async def test_the_others_wait_on(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Cancelling the first, one amid and the last leaves the others in order."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1), "first")
            lock = others.mutex("order", 1)
            waiting = [await guests.queues(lock, "0")]
            waiting += [await guests.invite(lock, f"{n}") for n in range(1, 6)]
            for number in (0, 3, 5):
                waiting[number].scope.cancel()
                await waiting[number].gone()
            guests.all_may_leave()
            await first.gone()
        assert guests.order == ["first", "1", "2", "4"]

    async def test_all_waiters_cancelled_at_once(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Many waiters cancelled in one go leave nothing."""
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1))
            lock = others.rwlock("order", 1)
            await guests.queues(lock.writer)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    for number in range(20):
                        group.start_soon(_with, (lock.reader, lock.writer)[number % 2])
                    await guests.places(lock, 2)
                    scope.cancel()
            assert scope.cancelled_caught
            await guests.places(lock, 1)
            guests.all_may_leave()
            await first.gone()
            await nothing_left(guests, lock.writer)

    @pytest.mark.parametrize("form", ["with", "await", "try"])
    async def test_cancelled_at_every_step(
        self, store: StoreUnderTest, locks: Locks, others: Locks, form: str
    ) -> None:
        """Whenever a free lock's acquire is cancelled, the lock is free afterwards."""
        lock = locks.mutex("order", 1)
        async with task_actors(store) as guests:
            for steps in range(CANCEL_POINTS):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(FORMS[form], lock)
                        for _ in range(steps):
                            await checkpoint()
                        scope.cancel()
                await nothing_left(guests, lock)
            held = await others.mutex("order", 1).try_acquire()
            assert held is not None
            await held.release()

    async def test_cancelled_at_every_step_of_a_hand_over(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Cancelled around the moment it is let in, a waiter does not keep the lock."""
        lock = others.mutex("order", 1)
        async with task_actors(store) as guests:
            for steps in range(CANCEL_POINTS):
                first = await guests.enters(locks.mutex("order", 1))
                waiting = await guests.queues(lock)
                first.may_leave()
                for _ in range(steps):
                    await checkpoint()
                waiting.scope.cancel()
                await waiting.gone()
                await first.gone()
                await nothing_left(guests, lock)

    async def test_cancelled_body_releases(self, locks: Locks, others: Locks) -> None:
        """A body that is cancelled releases; the cancellation goes on."""
        with anyio.CancelScope() as scope:
            async with locks.mutex("order", 1):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        held = await others.mutex("order", 1).acquire(timeout=self.harness.patience)
        await held.release()

    async def test_cancelled_release_is_carried_out(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A release under way goes on when whoever waits for it is cancelled."""
        async with task_actors(store) as guests:
            for steps in range(CANCEL_POINTS // 2):
                held = await locks.mutex("order", 1).acquire()
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(held.release)
                        await checkpoint()
                        for _ in range(steps):
                            await checkpoint()
                        scope.cancel()
                with anyio.CancelScope() as scope:
                    async with locks.mutex("order", 2):
                        scope.cancel()  # the release starts under a cancelled scope
                for number in (1, 2):
                    await nothing_left(guests, others.mutex("order", number))

    async def test_move_on_after(self, locks: Locks, others: Locks) -> None:
        """A scope's deadline around ``acquire`` ends it like a cancellation."""
        async with others.mutex("order", 1):
            with anyio.move_on_after(0.05) as scope:
                async with locks.mutex("order", 1):
                    raise AssertionError("it was taken")
            assert scope.cancelled_caught
            async with locks.mutex("order", 2).acquire(timeout=0):
                pass


class NativeCancellationCases(Cases):
    """asyncio's own ways to cancel, which know no scopes."""

    pytestmark: ClassVar[Any] = [
        pytest.mark.anyio,
        pytest.mark.parametrize(
            "anyio_backend",
            [
                pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
                pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
            ],
        ),
    ]

    @pytest.mark.parametrize("times", [1, 2, 5])
    async def test_task_cancel(
        self, store: StoreUnderTest, locks: Locks, others: Locks, times: int
    ) -> None:
        """``Task.cancel()``, once or repeatedly, leaves no place and no grant."""
        lock = others.mutex("order", 1)
        async with task_actors(store) as guests:
            first = await guests.enters(locks.mutex("order", 1))
            task = asyncio.ensure_future(FORMS["with"](lock))
            await guests.places(lock, 1)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            await guests.places(lock, 0)
            await first.leave()
            await nothing_left(guests, lock)

    @pytest.mark.parametrize("form", list(FORMS))
    async def test_task_cancel_twice_at_every_step(
        self, store: StoreUnderTest, locks: Locks, others: Locks, form: str
    ) -> None:
        """Cancelled twice, wherever it is, a task leaves the lock free."""
        lock = locks.mutex("order", 1)
        async with task_actors(store) as guests:
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
                    await nothing_left(guests, lock)
            async with others.mutex("order", 1).acquire(timeout=0):
                pass

    async def test_asyncio_timeout(self, locks: Locks, others: Locks) -> None:
        """``asyncio.timeout`` and ``wait_for`` around an acquire end it cleanly."""
        async with others.mutex("order", 1):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await locks.mutex("order", 1).acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_hold(locks.mutex("order", 1)), 0.05)
        held = await asyncio.wait_for(_hold(locks.mutex("order", 1)), 20)
        held.check()  # acquired in a task that has ended
        await held.release()


async def _hold(lock: AnyLock) -> Held:
    return await lock.acquire()
