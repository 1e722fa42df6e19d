"""``fence_memory=0``: nothing of a resource stays, and nothing that cannot be read."""

from __future__ import annotations

import pytest

from aiorwlock_remote import connect
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("no loop has a part in it")]


@pytest.mark.parametrize("lease", [0.2, None])
async def test_a_resource_without_fence_memory_can_be_used_again(
    fresh_redis: RedisServer, lease: float | None
) -> None:
    """The keys may be over before the script is that says how long they live."""
    async with connect(fresh_redis.url, fence_memory=0, lease=lease) as locks:
        lock = locks.rwlock("order", 1)
        for _ in range(20):
            async with lock.writer.acquire() as writer:
                await writer.downgrade()
            async with lock.reader:
                pass
            lives = [
                fresh_redis.ask("PTTL", key) for key in fresh_redis.ask("KEYS", "*")
            ]
            assert -1 not in lives
