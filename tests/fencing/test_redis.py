"""Strings of Redis: their life, their fence's place, texts for other clients."""

from __future__ import annotations

import pytest
import redis.asyncio
from redis.crc import key_slot

from aiorwlock_remote import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.redis import (
    FENCED_GET,
    FENCED_SET,
    fence_key,
    fenced_get,
    fenced_set,
)
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "key", ["a", "stock:7", "{a}b", "x{a}y", "a{", "{", "{}{a", "ü", "a.fence"]
)
async def test_the_fence_is_in_the_same_slot(key: str) -> None:
    if key == "{}{a":
        with pytest.raises(ConfigurationError):
            fence_key(key)
        return
    assert key_slot(fence_key(key).encode()) == key_slot(key.encode())
    assert fence_key(key) != key


@pytest.mark.parametrize("key", ["", "}", "a}", "{}", "}{"])
async def test_keys_without_one(key: str) -> None:
    with pytest.raises(ConfigurationError):
        fence_key(key)


async def test_a_value_may_run_out_its_fence_does_not(fresh_redis: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(
        fresh_redis.url, decode_responses=True
    ) as client:
        await fenced_set(client, "a", "x", 5, ttl=60)
        assert 0 < await client.pttl("a") <= 60_000
        assert await client.pttl(fence_key("a")) == -1
        await client.delete("a")
        assert await fenced_get(client, "a", 5) is None
        with pytest.raises(StaleFence) as caught:
            await fenced_set(client, "a", "x", 4)
        assert caught.value.highest == 5
        await fenced_set(client, "a", "y", 5)
        assert await client.pttl("a") == -1
        assert await fenced_get(client, "a", 5) == "y"


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12])
async def test_no_time_to_live(ttl: float, fresh_redis: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(fresh_redis.url) as client:
        with pytest.raises(ConfigurationError):
            await fenced_set(client, "a", "x", 5, ttl=ttl)
        assert await client.keys() == []


async def test_the_texts_stand_alone(fresh_redis: RedisServer) -> None:
    ask = fresh_redis.ask
    assert ask("EVAL", FENCED_SET, 2, "a", "{a}.fence", 5, "x", "") == [1, b"5"]
    assert ask("EVAL", FENCED_SET, 2, "a", "{a}.fence", 4, "y", "") == [0, b"5"]
    assert ask("EVAL", FENCED_GET, 2, "a", "{a}.fence", 6) == [1, b"x"]
    assert ask("EVAL", FENCED_GET, 2, "a", "{a}.fence", 5) == [0, b"6"]
