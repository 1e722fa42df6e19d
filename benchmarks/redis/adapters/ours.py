"""All kinds of locks of aiorwlock-remote, through the public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiorwlock_remote import Held, Locks
from aiorwlock_remote import connect as connect_locks
from aiorwlock_remote.recipes import MutexSet
from benchmarks.harness.lock import Client, Cycle

TYPE = "bench"


class _Client:
    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    async def lock(self, key: str, mode: str) -> Cycle:
        if mode == "mutex":
            return self._locks.mutex(TYPE, key)
        if mode == "any":
            return _Any(self._locks.mutex_set(key))
        both = self._locks.rwlock(TYPE, key)
        return both.reader if mode == "reader" else both.writer


class _Any:
    """Any free mutex of a set, taken anew in each cycle."""

    def __init__(self, mutexes: MutexSet) -> None:
        self._mutexes = mutexes
        self._held: Held

    async def __aenter__(self) -> Held:
        self._held = await self._mutexes.acquire()
        return self._held

    async def __aexit__(self, *_: object) -> None:
        await self._held.release()


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one ``Locks`` for all locks of this process."""
    async with connect_locks(url, lease=lease) as locks:
        yield _Client(locks)
