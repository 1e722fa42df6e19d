"""Other published locks (S1 to S4), each for the stores that can hold it.

This module is their typed shape. A store that cannot hold one refuses it with
``Unsupported`` when it is asked for, before anything is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock


class MutexSet(Protocol):
    """S1: many mutexes in one sorted set; take a named one, or any that is free."""

    async def create(self, name: str) -> bool:
        """Add a mutex; False if there is one of that name."""

    async def remove(self, name: str) -> bool:
        """Remove a mutex, held or not; False if there is none."""

    def acquire(
        self, name: str | None = None, timeout: float | None = None
    ) -> Acquisition:
        """Wait for this mutex, or for any; ``held.resource`` tells which."""

    async def update(self, held: Held) -> None:
        """Renew by hand; raises ``LockLost`` if it was taken over."""

    async def release(self, held: Held, *, remove: bool = False) -> bool:
        """Give it back, and with ``remove`` take it out of the set."""

    def list(self) -> AsyncIterator[str]:
        """The names of all mutexes."""


class SetRWLock(Protocol):
    """S3: a readers-writer lock on a Redis set and a string."""

    @property
    def reader(self) -> ReaderLock:
        """The shared side."""

    @property
    def writer(self) -> WriterLock:
        """The exclusive side."""


class RowLock(Protocol):
    """S2: a readers-writer lock in the resource's own row."""

    def read(self, reason: str) -> AbstractAsyncContextManager[None]:
        """RLock … RUnlock around the body."""

    def write(self, reason: str) -> AbstractAsyncContextManager[None]:
        """WLock … WUnlock around the body."""


class Occupancy(Protocol):
    """S4: occupying existing objects by pending → using."""

    def occupy(self) -> AbstractAsyncContextManager[None]:
        """Use the object alone; ``LockBusy`` if another is using it."""

    async def try_occupy(self) -> bool:
        """Whether it could be occupied."""
