"""Where the recipes are made, of stores that can hold them."""

from __future__ import annotations

from typing import Unpack

from aiorwlock_remote.core.lease import check_seconds
from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.pair import pair
from aiorwlock_remote.core.pool import check_name
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.locks.lock import RWLock
from aiorwlock_remote.locks.options import OnLost, OptionArgs, Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.recipe_ports import HoldsPairs, HoldsSets
from aiorwlock_remote.recipes import MutexSet, Occupancy, RowLock
from aiorwlock_remote.recipes.mutex_set import Pools

REVALIDATE = 1.25
"""Seconds: with its jitter, the poll of every other waiter."""


class RecipeCalls:
    """The other published locks, for the stores that can hold them."""

    def __init__(self, session: Session, options: Options) -> None:
        """Part of a ``Locks``."""
        self._session = session
        self._options = options
        self._pools = Pools(session)

    def mutex_set(
        self,
        name: str,
        *,
        lease: float = 60.0,
        revalidate_seconds: float = REVALIDATE,
        keep: bool = True,
        on_lost: OnLost | None = None,
        max_hold: float | None = None,
    ) -> MutexSet:
        """S1: many mutexes in one sorted set of Redis; no I/O.

        ``lease``: seconds a grant lives from its last update, the published
        ``timeout_seconds``: the same in every program that uses the set. The keeper
        updates in the background unless ``keep`` is False. ``revalidate_seconds``, at
        least ``REVALIDATE``: how often a waiter looks if nothing wakes it. ``on_lost``
        and ``max_hold`` as everywhere.

        Raises:
            Unsupported: this store cannot hold one.
            ConfigurationError: a name or a number that cannot be used.
        """
        check_name("set", name)
        check_seconds("revalidate_seconds", revalidate_seconds, least=REVALIDATE)
        given: object = lease
        if given is None:
            raise ConfigurationError(what="a mutex of a set has a lease")
        options = self._options.but({"lease": lease, "max_hold": max_hold})
        if on_lost is not None:
            options = options.but({"on_lost": on_lost})
        store = self._session.drive.store
        if not isinstance(store, HoldsSets):
            raise _missing(f"mutex set {name!r}")
        pool = self._pools.pool(store, name, revalidate_seconds)
        return MutexSet(self._session, pool, name, options, keep=keep)

    def set_rwlock(
        self, datatype: str, resource_id: ResourceId, **options: Unpack[OptionArgs]
    ) -> RWLock:
        """S3: a readers-writer lock on a Redis set and a string; no I/O.

        ``readlock:<datatype>:<id>`` and ``writelock:<datatype>:<id>``: programs that
        use the published statements on them exclude ours and are excluded. ``policy``
        is ``"reader"`` if not given here, the published rule: readers starve writers.

        Raises:
            Unsupported: this store cannot hold one.
            ConfigurationError: a name or an option that cannot be used.
        """
        target = pair(datatype, resource_id)
        store = self._session.drive.store
        if not isinstance(store, HoldsPairs):
            raise _missing(f"readers-writer lock on the set readlock:{target.key}")
        store.check_pair(target)
        chosen = self._options.but({"policy": "reader"}).but(options)
        return RWLock(self._session, target, chosen)

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
