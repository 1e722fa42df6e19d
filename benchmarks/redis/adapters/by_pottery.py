"""The ``AIORedlock`` of pottery on one server, which looks again after 0 to 200 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from pottery import AIORedlock
from redis.asyncio import Redis

from benchmarks.harness.lock import Client, Cycle


class _Client:
    def __init__(self, redis: Redis, lease: float) -> None:
        self._redis = redis
        self._lease = lease

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        lock = AIORedlock(key=key, masters={self._redis}, auto_release_time=self._lease)
        return cast("Cycle", lock)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open a client of redis-py, with its pool as it comes."""
    async with Redis.from_url(url) as redis:
        yield _Client(redis, lease)
