"""aiorwlock-remote, through its public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiorwlock_remote import Locks
from aiorwlock_remote import connect as connect_locks
from benchmarks.redis.adapters.client import Client, Cycle

TYPE = "bench"


class _Client:
    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    async def lock(self, key: str, mode: str) -> Cycle:
        if mode == "mutex":
            return self._locks.mutex(TYPE, key)
        both = self._locks.rwlock(TYPE, key)
        return both.reader if mode == "reader" else both.writer


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """One ``Locks``."""
    async with connect_locks(url, lease=lease) as locks:
        yield _Client(locks)
