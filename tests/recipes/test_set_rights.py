"""The rights that the documentation says a mutex set needs: enough, none too many."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import BackendError, connect
from tests.backends.redis.connections import eventually
from tests.backends.redis.rights import objects, rules, set_rules, user
from tests.recipes.fix_sets import KEY, QUEUE, traces
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis()


async def everything(server: RedisServer, url: str) -> None:
    """Every kind of step on a set."""
    async with connect(url) as one, connect(url) as two:
        pool, other = (locks.mutex_set(KEY, lease=60) for locks in (one, two))
        await pool.create("a")
        held = await pool.acquire("a")
        await pool.update(held)

        async def wait() -> None:
            async with other.acquire():
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: server.ask("ZCARD", QUEUE) == 1, "waits", 3)
            await pool.release(held)
        assert [name async for name in pool.list()] == ["a"]
        await pool.release(await pool.acquire(), remove=True)
        await pool.remove("a")


async def test_the_documented_rights_are_enough(server: RedisServer) -> None:
    with user(server, rules() + set_rules()) as url:
        await everything(server, url)
        assert traces(server) == []
    assert objects(server) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.parametrize("right", [right for right in set_rules() if right[0] == "+"])
async def test_none_of_them_is_too_many(server: RedisServer, right: str) -> None:
    some = [rule for rule in rules() + set_rules() if rule != right]
    with user(server, some) as url, pytest.raises((BackendError, ExceptionGroup)):
        await everything(server, url)
    assert right[1:].encode() in objects(server)
