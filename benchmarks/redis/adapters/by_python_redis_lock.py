"""The ``Lock`` of python-redis-lock, which waits in BLPOP.

The library is synchronous: an async program has to call it in worker threads. A lock
that waits keeps its thread and its connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import redis_lock
from anyio import CapacityLimiter, to_thread
from redis import Redis

from benchmarks.harness.lock import Client, Cycle

THREADS = 2000


class _Lock:
    def __init__(self, lock: Any, threads: CapacityLimiter) -> None:  # noqa: ANN401 - no types
        self._lock = lock
        self._threads = threads

    async def __aenter__(self) -> None:
        await to_thread.run_sync(self._lock.acquire, limiter=self._threads)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await to_thread.run_sync(self._lock.release, limiter=self._threads)


class _Client:
    def __init__(self, redis: Redis, lease: float) -> None:
        self._redis = redis
        self._lease = int(lease)
        self._threads = CapacityLimiter(THREADS)

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        lock = redis_lock.Lock(self._redis, key, expire=self._lease)
        return _Lock(lock, self._threads)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open a client of redis-py, with its pool as it comes."""
    with Redis.from_url(url) as redis:
        yield _Client(redis, lease)
