"""aiorwlock-remote on Cassandra: mutexes, fair and unfair, and the published calls."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from aiorwlock_remote import Locks
from aiorwlock_remote import connect as connect_locks
from benchmarks.harness.lock import Client, Cycle, row_of
from benchmarks.harness.ours import connect, connect_unfair

__all__ = ["connect", "connect_calls", "connect_unfair"]


class _PublishedCalls:
    def __init__(self, locks: Locks, lease: float) -> None:
        self._locks = locks
        self._lease = lease

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _PublishedMutex(self._locks, row_of(key), self._lease)


class _PublishedMutex:
    def __init__(self, locks: Locks, key: tuple[str, int], lease: float) -> None:
        self._locks = locks
        self._key = key
        self._lease = lease
        self._ticket = secrets.token_hex(16)

    async def __aenter__(self) -> None:
        assert await self._locks.acquire_mutex_lock(
            *self._key, self._ticket, lease=self._lease
        ), "the published calls do not wait"

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._locks.release_mutex_lock(*self._key, self._ticket)


@asynccontextmanager
async def connect_calls(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one ``Locks`` for the published calls."""
    async with connect_locks(url) as locks:
        yield _PublishedCalls(locks, lease)
