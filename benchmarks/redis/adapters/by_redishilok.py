"""The mutex and the readers-writer lock of redishilok, which look again every 400 ms.

redishilok needs an older redis-py than the other peers: its worker has a folder with
both in front of the path (see ``foreign.py``), which only runs this module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from types import TracebackType
from typing import Any

from benchmarks.harness.lock import Client, Cycle


class _Lock:
    def __init__(self, make: Any, *, writes: bool) -> None:  # noqa: ANN401 - not installed here
        self._make = make
        self._writes = writes
        self._held: AbstractAsyncContextManager[object]

    async def __aenter__(self) -> None:
        lock = self._make()
        self._held = lock.write() if self._writes else lock.read()
        await self._held.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._held.__aexit__(exc_type, exc, traceback)


class _Client:
    def __init__(self, redis: Any, lease: float) -> None:  # noqa: ANN401 - as above
        self._redis = redis
        self._lease = int(lease * 1000)
        self._locks = import_module("redishilok")

    async def lock(self, key: str, mode: str) -> Cycle:
        def make() -> object:
            return self._locks.RedisRWLockCtx(self._redis, key, ttl=self._lease)

        return _Lock(make, writes=mode != "reader")


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open a client of redis-py, as redishilok does it."""
    async with import_module("redis.asyncio").from_url(url) as redis:
        yield _Client(redis, lease)
