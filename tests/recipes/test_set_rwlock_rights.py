"""The rights that the documentation says a pair of keys needs: enough, not too many."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import BackendError, connect
from tests.backends.redis.rights import objects, pair_rules, rules, user
from tests.recipes.fix_pairs import READ_KEY, WRITE_KEY, catalog, queued, traces
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis()


async def everything(server: RedisServer, url: str) -> None:
    """Every kind of step on a pair."""
    async with connect(url) as one, connect(url) as two:
        ours, theirs = (locks.set_rwlock("catalog", 7) for locks in (one, two))

        async def wait() -> None:
            async with theirs.writer:
                pass

        async with anyio.create_task_group() as group, ours.reader as held:
            group.start_soon(wait)
            await queued(server, 1)
            await held.extend()
        held = await (await ours.writer.acquire()).downgrade()
        await (await held.upgrade(timeout=1)).release()
        (await ours.reader.acquire(lease=0.2)).detach()
        async with theirs.writer.acquire(timeout=2):
            pass
        server.ask("SADD", READ_KEY, "joe")
        assert await theirs.writer.try_acquire() is None
        seen = await ours.info()
        assert await one.force_release(seen, reason="test") == 1


async def test_the_documented_rights_are_enough(server: RedisServer) -> None:
    with user(server, rules() + pair_rules()) as url:
        await everything(server, url)
        assert traces(server) == []
    assert objects(server) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.parametrize("right", [right for right in pair_rules() if right[0] == "+"])
async def test_none_of_them_is_too_many(server: RedisServer, right: str) -> None:
    some = [rule for rule in rules() + pair_rules() if rule != right]
    with user(server, some) as url, pytest.raises((BackendError, ExceptionGroup)):
        await everything(server, url)
    assert right[1:].encode() in objects(server)


async def test_without_them_locks_are_as_before(server: RedisServer) -> None:
    """Whoever has no pairs needs no rights for them."""
    with user(server, rules()) as url:
        async with connect(url) as locks, catalog(server) as lock, lock.writer:
            async with locks.mutex("a", 1):
                pass
            with pytest.raises(BackendError):
                await locks.set_rwlock("catalog", 7).reader.try_acquire()
    with user(server, [*rules(), "+scan"]) as url:
        server.ask("SET", WRITE_KEY, "bob")
        async with connect(url) as locks, locks.mutex("a", 1):
            assert [seen.resource_type async for seen in locks.list()] == ["a"]
