"""Occupying objects in Redis: servers that fail, a cluster, the documented rights."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.rights import objects, occupancy_rules, rules, user
from tests.recipes.occupied_places import BOOK
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartRedis
from tests.servers.pair import Pair, too_few

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


@pytest.mark.slow
async def test_a_server_that_is_gone(start_redis: StartRedis) -> None:
    server = start_redis()
    async with connect(server.url, connect_timeout=1) as locks:
        occupied = await locks.occupancy().occupy(("book", 1))
        server.kill()
        with pytest.raises(BackendUnavailable):
            await locks.occupancy().occupy(BOOK)
        with pytest.raises(BackendUnavailable):
            await occupied.release()


@pytest.mark.slow
async def test_a_server_that_is_full(start_redis: StartRedis) -> None:
    """Nobody gets in, and whoever is in gets out."""
    server = start_redis(config={"maxmemory-policy": "noeviction"})
    async with connect(server.url) as locks:
        occupied = await locks.occupancy().occupy(("book", 1))
        server.ask("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(BackendError, match="OOM"):
            await locks.occupancy().occupy(BOOK)
        await occupied.extend()
        assert await occupied.release()
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert server.ask("KEYS", "*") == []


@pytest.mark.slow
async def test_too_few_replicas(pair: Pair) -> None:
    async with connect(pair.url, min_replicas=1) as locks:
        async with locks.occupancy().occupy(BOOK):
            assert pair.replica.ask("EXISTS", "using:book:42") == 1
        pair.replica.pause()
        await too_few(locks.occupancy().occupy(BOOK))
        assert pair.primary.ask("KEYS", "*") == []


@pytest.mark.slow
async def test_in_a_cluster(redis_cluster: Cluster) -> None:
    async with connect(redis_cluster.url) as locks:
        with pytest.raises(ConfigurationError, match="slots"):
            _ = locks.occupancy().occupy(BOOK)
        tagged = locks.occupancy(pending="pending:{%s}", using="using:{%s}")
        for number in range(5):
            async with tagged.occupy(("book", number)):
                with pytest.raises(LockBusy):
                    await tagged.occupy(("book", number))
        async with locks.occupancy().occupy(("{book}", 42)):
            pass
        keys = list(tagged.store._keys("book:7"))  # type: ignore[attr-defined]
        assert len({slot_of(key) for key in keys}) == 1


async def everything(url: str, number: int = 0) -> None:
    """Every kind of step."""
    async with connect(url) as locks:
        books, book = locks.occupancy(pending_age=1), ("book", number)
        await books.store.write(f"book:{number}", "somebody")
        await anyio.sleep(1.2)
        async with books.occupy(book) as occupied:
            await occupied.extend()
            assert await books.try_occupy(book) is None
        async with locks.occupancy(using_age=None).occupy(("book", number)):
            pass


@pytest.mark.slow
async def test_the_documented_rights_are_enough(start_redis: StartRedis) -> None:
    server = start_redis()
    with user(server, rules() + occupancy_rules()) as url:
        await everything(url)
    assert objects(server) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.slow
@pytest.mark.only_on("asyncio", "the server does not see the loop")
async def test_none_of_them_is_too_many(start_redis: StartRedis) -> None:
    server = start_redis()
    rights = [right for right in occupancy_rules() if right[0] == "+"]
    async with anyio.create_task_group() as group:
        for number, right in enumerate(rights):
            some = [rule for rule in rules() + occupancy_rules() if rule != right]
            name = f"locks{number}"
            server.ask("ACL", "SETUSER", name, *some)
            url = f"redis://{name}:password@127.0.0.1:{server.port}/0"
            group.start_soon(_is_refused, url, number)
    assert {right[1:].encode() for right in rights} <= objects(server)


async def _is_refused(url: str, number: int) -> None:
    with pytest.raises(Unsupported):
        await everything(url, number)
