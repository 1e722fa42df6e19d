"""What a mutex set costs: steps among many mutexes, and waiting."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
import redis

from aiorwlock_remote import LockTimeout, connect
from aiorwlock_remote.recipes import MutexSet
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, QUEUE, proxies, requests
from tests.recipes.test_mutex_set import queued
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@contextmanager
def overheard(server: RedisServer) -> Iterator[list[list[str]]]:
    """What the scripts call until the block ends, as words; complete after it."""
    heard: list[list[str]] = []
    plain = redis.Redis.from_url(server.url)
    with plain.monitor() as monitor:  # type: ignore[no-untyped-call]
        yield heard
        server.ask("ECHO", "that is all")
        while (event := monitor.next_command())["command"] != "ECHO that is all":
            if event["client_type"] == "lua":
                heard.append(event["command"].split(" "))


async def test_any_among_10000(fresh_redis: RedisServer) -> None:
    """The same calls as among 10, and none that looks at more of the set."""

    async def calls(count: int) -> list[str]:
        fresh_redis.ask("FLUSHALL")
        stamp = time.time()
        for first in range(0, count, 1000):
            some = range(first, min(first + 1000, count))
            pairs = [x for i in some for x in (stamp if i % 2 else 0, f"m{i}")]
            fresh_redis.ask("ZADD", KEY, *(str(x) for x in pairs))
        async with proxies(fresh_redis) as pool:
            with overheard(fresh_redis) as heard:
                for name in (None, "m0"):
                    async with pool.acquire(name) as held:
                        await pool.update(held)
                        assert await pool.try_acquire("m1") is None
            assert len([name async for name in pool.list()]) == count
        for verb, *rest in heard:
            if rest[:1] == [KEY]:
                one = rest[-3:] == ["LIMIT", "0", "1"]
                assert verb in LOGARITHMIC or (verb == "ZRANGEBYSCORE" and one)
        # An expiry is only written when it is a millisecond later than before.
        return [verb for verb, *_ in heard if verb != "PEXPIREAT"]

    few, many = await calls(10), await calls(10_000)
    assert few == many


LOGARITHMIC = {"ZADD", "ZCARD", "ZCOUNT", "ZSCORE"}


@pytest.mark.only_on("asyncio", "the server counts")
async def test_waiting_costs_one_request_a_second(start_redis: StartRedis) -> None:
    """20 tasks for any and for two names, in one process; with events of others."""
    server = start_redis(config={"notify-keyspace-events": "Kz"})
    async with (
        proxies(server, "a", "b") as holder,
        proxies(server) as pool,
        holder.acquire("a"),
        holder.acquire("b"),
    ):
        async with anyio.create_task_group() as group:
            for name in (None, "a", "b") * 7:
                group.start_soon(pool.acquire(name).__aenter__)
            await queued(server, 3)
            await anyio.sleep(1)  # what came before must not count
            before, began = requests(server), anyio.current_time()
            for _ in range(40):
                await anyio.sleep(0.1)
                server.ask("ZADD", KEY, str(time.time()), "c")
            sent, took = requests(server) - before, anyio.current_time() - began
            assert 2 <= sent <= took + 2
            group.cancel_scope.cancel()
        await eventually(lambda: server.ask("ZCARD", QUEUE) == 0, "all withdrawn")


# -------------------------------- A set that nobody uses any more costs nothing


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
