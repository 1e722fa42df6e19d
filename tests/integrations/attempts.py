"""Attempts to be observed."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import LockTimeout, Mutex


async def fail_thrice(mutex: Mutex) -> None:
    """Busy, out of time and cancelled, while somebody else holds it."""

    async def fail() -> None:
        assert await mutex.try_acquire() is None
        with pytest.raises(LockTimeout):
            await mutex.acquire(timeout=0)
        with anyio.move_on_after(0.01):
            await mutex.acquire()

    async with mutex, anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
