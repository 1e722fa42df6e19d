"""redis-py's own ``Lock``: as it comes, and polling each millisecond."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from redis.asyncio import Redis

from benchmarks.shared.client import Client, Cycle


class _Client:
    def __init__(self, redis: Redis, lease: float, sleep: float) -> None:
        self._redis = redis
        self._lease = lease
        self._sleep = sleep

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return self._redis.lock(key, timeout=self._lease, sleep=self._sleep)


def polling(
    sleep: float,
) -> Callable[[str, float], AbstractAsyncContextManager[Client]]:
    """Opens a client whose locks look again after ``sleep`` seconds."""

    @asynccontextmanager
    async def connect(url: str, lease: float) -> AsyncIterator[Client]:
        async with Redis.from_url(url) as redis:
            yield _Client(redis, lease, sleep)

    return connect
