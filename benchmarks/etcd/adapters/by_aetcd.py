"""aetcd's own lock: a key with a lease of etcd, and a watch for its deletion.

Each acquire grants a lease first, which nobody renews or revokes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aetcd

from benchmarks.harness.lock import Client, Cycle


class _Lock:
    """The lock of one task: waits without a limit, which aetcd's ``async with`` has."""

    def __init__(self, lock: Any) -> None:  # noqa: ANN401 - aetcd has no types
        self._lock = lock

    async def __aenter__(self) -> None:
        assert await self._lock.acquire(timeout=None)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._lock.release()


class _Locks:
    def __init__(self, client: Any, lease: float) -> None:  # noqa: ANN401
        self._client = client
        self._lease = math.ceil(lease)

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._client.lock(f"/aetcd/{key}".encode(), ttl=self._lease))


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one client of aetcd."""
    parts = urlsplit(url)
    async with aetcd.Client(host=parts.hostname, port=parts.port) as client:
        yield _Locks(client, lease)
