"""Locks on pairs of keys when something goes wrong on the way."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import BackendUnavailable, connect
from aiorwlock_remote.errors import AcquireUncertain
from tests.backends.redis.connections import eventually
from tests.recipes.fix_pairs import (
    MODES,
    READ_KEY,
    WRITE_KEY,
    catalog,
    queued,
    side,
    traces,
)
from tests.runtime.cancel_at import CancelAt
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_anywhere(
    fresh_redis: RedisServer, mode: str, *, waits: bool, late: bool
) -> None:
    """At each suspension of acquire, hold and release: nothing stays behind."""
    async with catalog(fresh_redis) as lock, catalog(fresh_redis) as other:

        async def use() -> None:
            async with side(lock, mode):
                await anyio.lowlevel.checkpoint()

        for k in range(1, 40):
            holder = await other.writer.acquire() if waits else None
            done = CancelAt(use(), k, lambda: scope.cancel(), late=late)  # noqa: PLW0108
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:
                    if holder is not None:
                        group.start_soon(holder.release)
                    await done
            async with other.writer.acquire(timeout=5):
                pass
            await eventually(lambda: traces(fresh_redis) == [], "nothing stays")
            if done.suspensions < k:
                break
        else:
            pytest.fail("it never ends")


async def test_cancelled_while_it_waits(fresh_redis: RedisServer) -> None:
    async with catalog(fresh_redis) as lock, catalog(fresh_redis) as other:
        async with other.writer:
            for mode in MODES:
                async with anyio.create_task_group() as group:
                    group.start_soon(side(lock, mode).acquire().__aenter__)
                    await queued(fresh_redis, 1)
                    group.cancel_scope.cancel()
                await queued(fresh_redis, 0)
        assert traces(fresh_redis) == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_answer(start_redis: StartRedis, mode: str) -> None:
    """The script ran, its answer was lost: the ticket gives it back."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=2) as locks:
            lock = side(locks.set_rwlock("catalog", 7), mode)
            for wait in (0, 5):
                proxy.cut_after(1, to="client")
                with pytest.raises(BackendUnavailable):
                    await lock.acquire(timeout=wait)
                await eventually(lambda: traces(server) == [], "given back")
            held = await lock.acquire(timeout=5)
            assert await held.release()


async def test_an_acquire_with_an_unknown_outcome(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=1) as locks:
            proxy.refuse()
            proxy.cut_after(1, to="client")
            with pytest.raises(AcquireUncertain):
                await locks.set_rwlock("catalog", 7).writer.acquire()
            proxy.accept()
            await eventually(lambda: traces(server) == [], "given back late")


async def test_a_waiter_survives_a_lost_connection(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with catalog(server) as other, connect(proxy.url) as locks:
            lock = locks.set_rwlock("catalog", 7)
            held = await other.writer.acquire()
            got: list[str] = []

            async def wait() -> None:
                async with lock.reader as mine:
                    got.append(mine.mode)

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await queued(server, 1)
                proxy.cut()
                await held.release()
                await eventually(lambda: got == ["read"], "got it", 8)
    assert traces(server) == []


async def test_out_of_memory(start_redis: StartRedis) -> None:
    """Who wants in is refused, who leaves is not."""
    server = start_redis(config={"maxmemory-policy": "noeviction"})
    async with catalog(server) as lock, catalog(server) as other:
        for mode in MODES:
            async with side(lock, mode) as held:
                server.ask("CONFIG", "SET", "maxmemory", 1)
                with pytest.raises(Exception, match="OOM"):
                    await side(other, mode).try_acquire()
                await held.extend()
            assert server.ask("EXISTS", READ_KEY, WRITE_KEY) == 0
            server.ask("CONFIG", "SET", "maxmemory", 0)
