"""The mutexes of aiorwlock-remote, through the public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiorwlock_remote import Locks
from aiorwlock_remote import connect as connect_locks
from benchmarks.harness.lock import Client, Cycle, row_of


class Mutexes:
    """The mutexes of one ``Locks``; ``fair`` is passed to each of them."""

    def __init__(self, locks: Locks, *, fair: bool = True) -> None:
        self._locks = locks
        self._fair = fair

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return self._locks.mutex(*row_of(key), fair=self._fair)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one ``Locks`` for the mutexes of this process."""
    async with connect_locks(url, lease=lease) as locks:
        yield Mutexes(locks)


@asynccontextmanager
async def connect_unfair(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one ``Locks`` whose mutexes may overtake the queue."""
    async with connect_locks(url, lease=lease) as locks:
        yield Mutexes(locks, fair=False)
