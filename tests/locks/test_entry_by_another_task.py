"""A block that is left by a task which did not enter it: a fixture, a generator."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import Mutex, NotOwner, connect

pytestmark = pytest.mark.anyio


async def test_the_error_says_how_to_pass_a_lock_to_another_task() -> None:
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 1)
        messages: list[str] = []

        async def leave(lock: Mutex) -> None:
            with pytest.raises(NotOwner) as refused:
                await lock.__aexit__(None, None, None)
            messages.append(str(refused.value))

        async with lock, anyio.create_task_group() as tasks:
            tasks.start_soon(leave, lock)
        (text,) = messages
        assert text.startswith("cannot leave order/1: this task has not entered it")
        assert "await acquire()" in text
