"""aiorwlock-remote on stores that need no server: one lock for all tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiorwlock_remote import Locks, connect
from benchmarks.harness.lock import Client, Cycle, Open


class _OneLock:
    def __init__(self, lock: Cycle) -> None:
        self._lock = lock

    async def lock(self, key: str, mode: str) -> Cycle:
        del key, mode
        return self._lock


def _opener(make: Callable[[Locks], Cycle]) -> Open:
    @asynccontextmanager
    async def open_locks(url: str, lease: float) -> AsyncIterator[Client]:
        async with connect(url, lease=lease) as locks:
            yield _OneLock(make(locks))

    return open_locks


mutex = _opener(lambda locks: locks.mutex("bench", 1))
reader = _opener(lambda locks: locks.rwlock("bench", 1).reader)
writer = _opener(lambda locks: locks.rwlock("bench", 1).writer)
