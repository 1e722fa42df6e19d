"""Other published locks (S1 to S4), each for the stores that can hold it.

``MutexSet`` is there; S3 is an ``RWLock`` on other keys; of the others this module is
the typed shape. A store that cannot hold one refuses it with ``Unsupported`` when it is
asked for, before anything is sent.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aiorwlock_remote.recipes.mutex_set import MutexSet as MutexSet


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
