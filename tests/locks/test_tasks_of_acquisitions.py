"""``lock.acquire()`` as the coroutine of a task of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from aiorwlock_remote import Held, connect
from aiorwlock_remote.testing.conformance.actors import wait_until

pytestmark = pytest.mark.asyncio


async def test_a_task_of_it_gets_the_lock() -> None:
    """It outlives the task: it belongs to whoever refers to it."""
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        held = await asyncio.create_task(lock.acquire())
        held.check()
        assert await lock.locked()
        await held.release()


async def test_within_a_time() -> None:
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        held = await asyncio.wait_for(lock.acquire(), 20)
        another = asyncio.create_task(asyncio.wait_for(lock.acquire(), 0.05))
        with pytest.raises(TimeoutError):
            await another  # since Python 3.12 `wait_for` makes no task of its own
        await held.release()
        assert not await lock.locked()


async def test_many_at_once() -> None:
    async with connect("memory://") as locks:
        reader = locks.rwlock("catalog", 7).reader
        held = await asyncio.gather(*(reader.acquire() for _ in range(5)))
        assert len({each.fence for each in held}) == 1
        for each in held:
            await each.release()


async def test_a_cancelled_task_leaves_nothing() -> None:
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        held = await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())

        async def queued() -> bool:
            return bool((await lock.info()).queue)

        await wait_until(queued, 20)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await lock.info()).queue == ()
        await held.release()


async def test_from_another_thread() -> None:
    loop, got = asyncio.get_running_loop(), list[Held]()
    async with connect("memory://") as locks:

        def elsewhere() -> None:
            asking = asyncio.run_coroutine_threadsafe(lock.acquire(), loop)
            got.append(asking.result(20))

        lock = locks.mutex("order", 42)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert await got[0].release()


async def test_the_name_of_an_acquisitions_task() -> None:
    """In messages, and where somebody looks for what hangs."""
    async with connect("memory://") as locks:
        acquisition: Coroutine[Any, Any, Held] = locks.mutex("order", 42).acquire()
        assert repr(acquisition) == "<Acquisition order/42 write>"
        task = asyncio.create_task(acquisition)
        assert "Acquisition" in repr(task)
        await (await task).release()


async def test_one_that_is_closed_before_it_began() -> None:
    """As when a loop ends before the task had its turn."""
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        lock.acquire().close()
        assert not await lock.locked()
