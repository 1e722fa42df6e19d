"""aiorwlock-remote's mutexes, through its public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiorwlock_remote import Locks
from aiorwlock_remote import connect as connect_locks
from benchmarks.shared.client import Client, Cycle
from benchmarks.shared.row import row


class Mutexes:
    """Of one ``Locks``; ``fair`` as its option."""

    def __init__(self, locks: Locks, *, fair: bool = True) -> None:
        self._locks = locks
        self._fair = fair

    async def lock(self, key: str, mode: str) -> Cycle:
        """A mutex, as any other lock is measured."""
        assert mode == "mutex"
        return self._locks.mutex(*row(key), fair=self._fair)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """One ``Locks``."""
    async with connect_locks(url, lease=lease) as locks:
        yield Mutexes(locks)
