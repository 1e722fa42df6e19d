"""A set that nobody uses any more costs nothing."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest

from aiorwlock_remote import LockTimeout, connect
from aiorwlock_remote.recipes import MutexSet
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


def parts(used: MutexSet) -> list[weakref.ref[object]]:
    """What there is in memory for a set, here and in its store."""
    pool = used._acquirer
    return [weakref.ref(part) for part in (pool, pool.members)]


async def test_an_unused_set_is_forgotten(fresh_redis: RedisServer) -> None:
    """Once used, waited for in vain, and given back."""
    async with connect(fresh_redis.url) as locks:
        used = locks.mutex_set("proxies")
        await used.create("a")
        async with used.acquire("a"):
            with pytest.raises(LockTimeout):
                await used.acquire(timeout=0.01)
        before = parts(used)
        del used

        async def gone() -> bool:
            gc.collect()
            return not any(part() for part in before)

        await wait_until(gone, 10)
        again = locks.mutex_set("proxies")
        async with again.acquire("a", timeout=0) as held:
            assert held.name == "a"


async def test_not_while_somebody_waits(fresh_redis: RedisServer) -> None:
    """Nor while somebody holds what was taken from it."""
    async with connect(fresh_redis.url) as locks:
        used = locks.mutex_set("proxies")
        await used.create("a")
        held = await used.acquire("a")
        acquired = anyio.Event()

        async def wait() -> None:
            async with locks.mutex_set("proxies").acquire("a", timeout=30):
                acquired.set()

        (pool, *_) = parts(used)
        async with anyio.create_task_group() as group:
            group.start_soon(wait)

            async def waits() -> bool:
                return bool(fresh_redis.ask("EXISTS", "{proxies}.queue"))

            await wait_until(waits, 10)
            del used
            gc.collect()
            assert pool() is not None
            assert await held.release()
            with anyio.fail_after(30):
                await acquired.wait()
