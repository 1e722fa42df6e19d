"""The ``Lock`` of redis-py: with its default pause, and polling each millisecond."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from benchmarks.harness.lock import Client, Cycle, Open


class _Client:
    def __init__(self, redis: Redis, lease: float, sleep: float) -> None:
        self._redis = redis
        self._lease = lease
        self._sleep = sleep

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return self._redis.lock(key, timeout=self._lease, sleep=self._sleep)


def _opener(sleep: float) -> Open:
    """Return what opens a client whose locks poll every ``sleep`` seconds."""

    @asynccontextmanager
    async def connect(url: str, lease: float) -> AsyncIterator[Client]:
        async with Redis.from_url(url) as redis:
            yield _Client(redis, lease, sleep)

    return connect


connect = _opener(0.1)
connect_fast = _opener(0.001)
