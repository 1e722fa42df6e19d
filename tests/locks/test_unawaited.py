"""``lock.acquire()`` without ``await``: nothing is locked, and that is told."""

from __future__ import annotations

import gc

import pytest

from aiorwlock_remote import connect

pytestmark = pytest.mark.anyio


async def test_it_is_told_as_of_a_coroutine() -> None:
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        with pytest.warns(RuntimeWarning, match="of order/42 was never awaited"):
            lock.acquire(timeout=3)  # type: ignore[unused-awaitable]
        assert not await lock.locked()


@pytest.mark.parametrize("timeout", [None, 0])
async def test_not_of_one_that_is_used(timeout: float | None) -> None:
    """Warnings are errors in these tests."""
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        async with lock.acquire(timeout):
            pass
        held = await lock.try_acquire()
        assert held is not None
        await held.release()
        held = await lock.acquire(timeout)
        await held.release()
        gc.collect()
