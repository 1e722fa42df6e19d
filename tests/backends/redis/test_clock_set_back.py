"""A server's clock set back: a dead holder's lock lasts longer, which is logged."""

from __future__ import annotations

import logging

import pytest

from aiorwlock_remote import Locks, connect
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio

HOUR = 3600
STATE = "{mutex_locks/order,1}.state"


async def listed(locks: Locks) -> list[str]:
    return [seen.resource_id async for seen in locks.stale()]


async def test_a_clock_set_back_is_noticed_before_the_next_renewal(
    fresh_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with connect(fresh_redis.url) as locks:
        mutex = locks.mutex("order", 1)
        held = await mutex.acquire()
        other = await locks.mutex("order", 2).acquire()
        assert (await mutex.info()).clock_set_back == 0.0
        assert await listed(locks) == []
        # As if the clock had been an hour ahead when that was written.
        updated = int(fresh_redis.ask("HGET", STATE, "updated"))
        fresh_redis.ask("HSET", STATE, "updated", updated + HOUR * 1_000_000)
        seen = await mutex.info()
        assert HOUR - 60 < seen.clock_set_back <= HOUR
        assert await listed(locks) == ["1"]
        found = {finding.name: finding async for finding in locks.examine()}
        assert found["clock set back"].rating == "bad"
        assert [text.split()[0] for text in caplog.messages].count(
            "store_clock_set_back"
        ) == 1
        await held.extend()
        assert (await mutex.info()).clock_set_back == 0.0
        assert await listed(locks) == []
        await other.release()
        await held.release()
