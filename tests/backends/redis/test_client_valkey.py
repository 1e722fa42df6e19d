"""``RedisBackend`` with a client of valkey-py, whose API is redis-py's of old."""

from __future__ import annotations

from pathlib import Path

import pytest
import valkey
from valkey.asyncio import Sentinel, Valkey, ValkeyCluster

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from tests.backends.redis.clients import ON_ASYNCIO
from tests.backends.redis.one_sentinel import NAME, watched
from tests.renewals import renewed
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = ON_ASYNCIO


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_lock_is_taken_and_renewed(
    fresh_redis: RedisServer, protocol: int
) -> None:
    client = Valkey.from_url(fresh_redis.url, protocol=protocol, decode_responses=True)
    async with (
        connect(RedisBackend(client)) as locks,
        connect(fresh_redis.url) as others,
        locks.mutex("order", 1) as held,
    ):
        await renewed(held)
        assert await others.mutex("order", 1).try_acquire() is None
        assert [f async for f in locks.examine() if f.name == "renewal"] == []
    assert await client.ping()
    await client.aclose()


async def test_a_wrong_password(start_redis: StartRedis) -> None:
    server = start_redis(users=["default on >right ~* &* +@all"])
    client = Valkey.from_url(f"redis://:wrong@127.0.0.1:{server.port}")
    with pytest.raises(Unsupported) as caught:
        await connect(RedisBackend(client))
    assert isinstance(caught.value.__cause__, valkey.AuthenticationError)
    await client.aclose()


async def test_a_client_of_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cluster"):
        RedisBackend(ValkeyCluster("localhost", 1))  # type: ignore[arg-type]


@pytest.mark.usefixtures("renewed_often")
async def test_sentinel(start_redis: StartRedis, tmp_path: Path) -> None:
    with watched(start_redis, tmp_path) as servers:
        sentinel = Sentinel([("127.0.0.1", servers.port)])  # type: ignore[no-untyped-call]
        client = sentinel.master_for(NAME)
        async with (
            connect(RedisBackend(client)) as locks,
            locks.mutex("order", 1) as held,
        ):
            await renewed(held)
        await client.aclose()
        for asked in sentinel.sentinels:
            await asked.aclose()


@pytest.mark.parametrize("name", ["GlideClient", "GlideClusterClient"])
async def test_a_glide_client_is_refused_with_a_hint_at_the_url(name: str) -> None:
    """It has no pool. The real ones are of these names (valkey-glide 2.6)."""
    client = type(name, (), {"__module__": "glide.glide_client"})()
    with pytest.raises(ConfigurationError) as refused:
        RedisBackend(client)
    assert str(refused.value).startswith(f"glide's {name} is not a client of")
    assert "valkey://host/0" in str(refused.value)
