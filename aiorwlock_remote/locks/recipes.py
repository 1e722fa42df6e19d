"""Where the recipes are made. No store of this version holds one yet."""

from __future__ import annotations

from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.recipes import MutexSet, Occupancy, RowLock, SetRWLock


class RecipeCalls:
    """The other published locks, for the stores that can hold them."""

    def mutex_set(self, name: str, *, lease: float = 60.0) -> MutexSet:
        """S1: many mutexes in one sorted set.

        Raises:
            Unsupported: this store cannot hold one.
        """
        raise _missing(f"mutex set {name!r} ({lease:g} s)")

    def set_rwlock(self, datatype: str, resource_id: ResourceId) -> SetRWLock:
        """S3: a readers-writer lock on a Redis set and a string.

        Raises:
            Unsupported: this store cannot hold one.
        """
        raise _missing(f"set lock {datatype}:{resource_id}")

    def row_lock(self, table: str, row_id: ResourceId) -> RowLock:
        """S2: a readers-writer lock in the resource's own row.

        Raises:
            Unsupported: this store cannot hold one.
        """
        raise _missing(f"row lock {table}/{row_id}")

    def occupancy(self, kind: str, object_id: ResourceId) -> Occupancy:
        """S4: occupying existing objects by pending → using.

        Raises:
            Unsupported: this store cannot hold one.
        """
        raise _missing(f"occupancy of {kind}/{object_id}")


def _missing(what: str) -> Unsupported:
    return Unsupported(
        what=f"{what}: this store cannot hold one",
        hint="see the capability matrix in the documentation",
    )
