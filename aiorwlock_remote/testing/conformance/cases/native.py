"""asyncio's own ways to cancel, which know no scopes."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from aiorwlock_remote import Held, Locks
from aiorwlock_remote.testing.conformance.actors import party
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import (
    FORMS,
    STEPS,
    nothing_left,
)
from aiorwlock_remote.testing.conformance.harness import AnyLock, StoreUnderTest


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
        async with party(store) as guests:
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
        async with party(store) as guests:
            for steps in range(STEPS):
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
