"""The queue of a mutex set: who comes first, and who waits for what is not there."""

from __future__ import annotations

import time

import anyio
import pytest

from aiorwlock_remote import LockLost
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import QUEUE, STATE, proxies, traces
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_places_nobody_looks_after_are_dropped(fresh_redis: RedisServer) -> None:
    """A process that died long ago does not stand before anybody."""
    now = int(time.time() * 1e6)
    async with proxies(fresh_redis, "a") as pool:
        for number, expires in enumerate((now - 1, now + 60_000_000), 1):
            place = f"dead.{number},"
            fresh_redis.ask("ZADD", QUEUE, number, place)
            fresh_redis.ask("HSET", STATE, f"p{place}", f"{expires},")
        assert await pool.try_acquire() is None, "one of them may live"
        assert fresh_redis.ask("ZRANGE", QUEUE, 0, -1) == [b"dead.2,"]
        async with pool.acquire(timeout=3) as held:
            assert held.name == "a", "it was called and did not come"
        fresh_redis.ask("DEL", QUEUE)
        fresh_redis.ask("HDEL", STATE, "pdead.2,")
    assert traces(fresh_redis) == []


def stands(server: RedisServer, target: str) -> None:
    """A live process waits there, and is slow to come."""
    until = int(time.time() * 1e6) + 60_000_000
    place = f"slow.{server.ask('ZCARD', QUEUE)},{target}"
    server.ask("ZADD", QUEUE, server.ask("ZCARD", QUEUE), place)
    server.ask("HSET", STATE, f"p{place}", f"{until},")


@pytest.mark.parametrize(
    ("ahead", "wanted", "got"),
    [
        (["a"], None, "b"),  # what is waited for by name is left alone
        (["a", "b"], None, "c"),
        (["a", "a", ""], None, "b"),  # the other one who wants any gets c
        (["", "a", "b"], None, None),
        (["a"], "a", None),
        (["b"], "a", "a"),
        (["", ""], "c", "c"),  # who wants any has enough of them
        (["", "", ""], "c", None),
        (["gone"], None, "a"),  # it is not to be had
    ],
)
async def test_the_order_of_the_queue_of_a_set(
    fresh_redis: RedisServer, ahead: list[str], wanted: str | None, got: str | None
) -> None:
    async with proxies(fresh_redis, "a", "b", "c") as pool:
        for target in ahead:
            stands(fresh_redis, target)
        held = await pool.try_acquire(wanted)
        assert (None if held is None else held.name) == got
        if held is not None:
            assert await held.release()


@pytest.mark.parametrize("name", ["a", None])
async def test_removed_while_it_is_waited_for(
    fresh_redis: RedisServer, name: str | None
) -> None:
    """A waiter gets it once it is created again; its holder learns of the loss."""
    async with (
        proxies(fresh_redis, "a") as pool,
        proxies(fresh_redis, revalidate_seconds=60) as other,
    ):
        held = await pool.acquire("a")
        got: list[int] = []

        async def wait() -> None:
            async with other.acquire(name) as mine:
                got.append(mine.fence)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: fresh_redis.ask("ZCARD", QUEUE) == 1, "waits")
            assert await pool.remove("a")
            assert await other.try_acquire() is None
            with pytest.raises(LockLost) as caught:
                await pool.update(held)
            assert caught.value.reason == "forced"
            assert got == []
            assert await pool.create("a")
        assert got > [held.fence]
    assert traces(fresh_redis) == []


@pytest.mark.parametrize("name", ["a", None])
async def test_released_and_removed_while_it_is_waited_for(
    fresh_redis: RedisServer, name: str | None
) -> None:
    """The one who waits for it by name waits on, the one for any takes another."""
    async with proxies(fresh_redis, "a", "b") as pool, proxies(fresh_redis) as other:
        a, b = await pool.acquire("a"), await pool.acquire("b")
        got: list[str] = []

        async def wait() -> None:
            async with other.acquire(name) as mine:
                got.append(mine.name)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: fresh_redis.ask("ZCARD", QUEUE) == 1, "waits")
            assert await pool.release(a, remove=True)
            assert got == []
            assert await pool.release(b)
            if name is not None:
                assert await pool.create("a")
        assert got == [name or "b"]
    assert traces(fresh_redis) == []
