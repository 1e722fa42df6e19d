"""A client of Sentinel's: both connections find the primary, and the next one."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis, Sentinel

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.redis.clients import ON_ASYNCIO
from tests.backends.redis.connections import eventually
from tests.backends.redis.one_sentinel import NAME, watched
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = ON_ASYNCIO

LEASE = 9.0


@pytest.mark.slow
async def test_a_lock_outlives_a_failover(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    """It is renewed at the new primary, and released and taken there."""
    with watched(start_redis, tmp_path) as servers:
        sentinel = Sentinel([("127.0.0.1", servers.port)])  # type: ignore[no-untyped-call]
        client: Redis = sentinel.master_for(NAME)
        async with connect(RedisBackend(client)) as locks:
            async with locks.mutex("order", 1, lease=LEASE) as held:
                await eventually(lambda: renewed(servers.primary), "renewed")
                await anyio.to_thread.run_sync(servers.fail_over)
                await eventually(lambda: renewed(servers.replica), "renewed there")
                held.check()
                assert await locks.mutex("order", 1).locked()
            async with locks.mutex("order", 1) as again:
                assert again.fence > held.fence
        await client.aclose()
        for asked in sentinel.sentinels:
            await asked.aclose()


def renewed(server: RedisServer) -> bool:
    """Whether a second connection of ours has carried out something."""
    clients = server.ask("CLIENT", "LIST").decode().splitlines()
    ours = [line for line in clients if "name=aiorwlock-remote" in line]
    # Behind each batch of renewals the primary is asked for its replicas.
    return any("cmd=info" in line for line in ours) and len(ours) == 2


async def test_sentinel_knows_no_such_primary(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    with watched(start_redis, tmp_path) as servers:
        sentinel = Sentinel([("127.0.0.1", servers.port)])  # type: ignore[no-untyped-call]
        client: Redis = sentinel.master_for("another")
        with pytest.raises(BackendUnavailable, match="another of Sentinel") as caught:
            await connect(RedisBackend(client))
        assert "No master found" in str(caught.value.__cause__)
        await client.aclose()
        for asked in sentinel.sentinels:
            await asked.aclose()
