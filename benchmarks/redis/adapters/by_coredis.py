"""The ``Lock`` of coredis, which looks again every 100 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

from coredis import Redis

from benchmarks.harness.lock import Client, Cycle


class _Client:
    def __init__(self, redis: Redis[bytes], lease: float) -> None:
        self._redis = redis
        self._lease = lease

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return cast("Cycle", self._redis.lock(key, timeout=self._lease))


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the client, whose tasks live in its own block."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    async with Redis(host=address.hostname, port=address.port) as redis:
        yield _Client(redis, lease)
