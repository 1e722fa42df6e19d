"""kazoo's lock on ZooKeeper: an ephemeral node in a queue.

kazoo is synchronous, and waits in a thread for each lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from kazoo.client import KazooClient

from benchmarks.harness.lock import Client, Cycle

MAX_THREADS = 1100
"""One for each task that waits: of the scenarios, at most a thousand."""


class _Lock:
    """The lock of one task."""

    def __init__(self, lock: Any, threads: ThreadPoolExecutor) -> None:  # noqa: ANN401
        self._lock = lock
        self._threads = threads

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(self._threads, self._lock.acquire)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(self._threads, self._lock.release)


class _Locks:
    def __init__(self, client: Any, threads: ThreadPoolExecutor) -> None:  # noqa: ANN401
        self._client = client
        self._threads = threads

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._client.Lock(f"/kazoo/{key}"), self._threads)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one client of kazoo; the lease is that of its session."""
    threads = ThreadPoolExecutor(MAX_THREADS)
    client = KazooClient(hosts=urlsplit(url).netloc, timeout=lease)
    await asyncio.to_thread(client.start)
    try:
        yield _Locks(client, threads)
    finally:
        client.stop()
        threads.shutdown(wait=False, cancel_futures=True)
