"""Methods of ``Locks`` that make mutex sets, row locks, leaders and the like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload
from weakref import WeakValueDictionary

from aiorwlock_remote.core.mutex_set import check_set_name
from aiorwlock_remote.core.names import ResourceId, key_pair
from aiorwlock_remote.core.occupancy import ExpiryAges, check_pattern
from aiorwlock_remote.core.row import RowKey, RowTable, check_key
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.locks.lock import OnLost, OptionArgs, RWLock
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports import Capability, StoreBase
from aiorwlock_remote.recipes.mutex_set import MutexSet
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.set_acquirer import SetAcquirer

if TYPE_CHECKING:
    from aiorwlock_remote.recipes.leader import Leader
    from aiorwlock_remote.recipes.occupancy import Occupancy
    from aiorwlock_remote.recipes.once import Once, OnceArgs
    from aiorwlock_remote.recipes.row_lock.lock import RowLock, SessionRowLocks

T = TypeVar("T")

REVALIDATE = 1.25
"""Seconds between two polls of a waiter for a mutex of a set: default and minimum."""

_REDIS = "redis:// can"
_SQL = "sqlite://, postgresql://, mariadb://, mysql:// and oracle:// can"
_OCCUPIED = "redis:// can; databases by integrations.sqlalchemy or .django"


class OccupancyArgs(TypedDict, total=False):
    """Options of ``occupancy``: names of keys, ages of records. Times in seconds.

    Attributes:
        pending: name of the store's key with the records of processes that are about to
            use an object, with ``%s`` for the object; ``"pending:%s"`` by default.
        using: the same for processes that use it; ``"using:%s"`` by default.
        pending_age: a record under ``pending`` that is older counts as dead, and other
            processes remove it; 10 by default.
        using_age: the same for ``using``; 600 by default; None: never dead.
    """

    pending: str
    using: str
    pending_age: float
    using_age: float | None


class RecipeFactories:
    """Base of ``Locks``: makes what stands on locks, or is a lock of some stores."""

    def __init__(self, session: Session, options: Options) -> None:
        self._session = session
        self._options = options
        self._acquirers: WeakValueDictionary[tuple[str, float], SetAcquirer]
        self._acquirers = WeakValueDictionary()
        self._rows: SessionRowLocks | None = None
        self._occupancy: dict[tuple[str, str, ExpiryAges], Occupancy] = {}

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
        """Return a group of named mutexes, kept in one sorted set of Redis; no I/O.

        Args:
            name: name of the set.
            lease: seconds a grant lives from its last renewal, the published
                ``timeout_seconds``: the same in every program that uses the set.
            revalidate_seconds: how often a waiter polls if no wake-up comes; at least
                1.25.
            keep: whether grants are renewed in the background.
            on_lost: see ``OptionArgs``; None: as given to ``connect``.
            max_hold: seconds; a grant is lost if it is held for longer.

        Raises:
            Unsupported: this store cannot hold mutex sets.
            ConfigurationError: a name or a number is not valid.
        """
        check_set_name("set", name)
        check_seconds("revalidate_seconds", revalidate_seconds, least=REVALIDATE)
        given: object = lease
        if given is None:
            raise ConfigurationError(what="a mutex of a set has a lease")
        options = self._options.but({"lease": lease, "max_hold": max_hold})
        if on_lost is not None:
            options = options.but({"on_lost": on_lost})
        what = f"mutex set {quoted(name)}"
        store = self._store(Capability.MUTEX_SETS, what, _REDIS)
        # It lives as long as a ``MutexSet`` or a waiting task refers to it, so that all
        # tasks of a process share one queue for a set (test_set_costs.py).
        acquirer = self._acquirers.get((name, revalidate_seconds))
        if acquirer is None:
            members, client = partial(store.members, name), self._session.client
            acquirer = SetAcquirer(name, client, members, revalidate_seconds)
            self._acquirers[name, revalidate_seconds] = acquirer
        return MutexSet(self._session, acquirer, name, options, keep=keep)

    def set_rwlock(
        self, datatype: str, resource_id: ResourceId, **options: Unpack[OptionArgs]
    ) -> RWLock:
        """Return a readers-writer lock stored in a Redis set and a string key; no I/O.

        The keys are ``readlock:<datatype>:<id>`` and ``writelock:<datatype>:<id>``: the
        lock and programs that use the published statements on these keys exclude each
        other. ``policy`` is ``"reader"`` if not given here, the published rule: readers
        starve writers.

        Raises:
            Unsupported: this store cannot hold one.
            ConfigurationError: a name or an option is not valid.
        """
        target = key_pair(datatype, resource_id)
        what = f"readers-writer lock on the set readlock:{target.key}"
        self._store(Capability.KEY_PAIRS, what, _REDIS).check_pair(target)
        chosen = self._options.but({"policy": "reader"}).but(options)
        return RWLock(self._session, target, chosen)

    def row_lock(
        self,
        table: str,
        row_id: RowKey,
        *,
        key: str = "id",
        mark: str = "lock_mark",
        count: str = "read_lock_count",
        reason: str = "lock_reason",
        lease: float | None = None,
        grants: str = "lock_grants",
    ) -> RowLock:
        """Return a readers-writer lock stored in a row of your own table; no I/O.

        The lock and programs that use the published UPDATEs on its columns exclude each
        other. The prefix and the lease of this ``Locks`` do not apply.

        Args:
            table: one of your own tables, if need be as ``schema.table``.
            row_id: the value of the column ``key`` in the row.
            key: the column that identifies a row.
            mark: the column with a text that says whether readers, a writer or no task
                hold the row.
            count: the column with the number of readers.
            reason: the column with the last holder's reason.
            lease: seconds a grant lives unless it is renewed; None: for ever.
            grants: the additional column for grants with a lease.

        Raises:
            Unsupported: this store cannot hold one.
            ConfigurationError: a name is not valid.
        """
        check_seconds("lease", lease, least=MIN_LEASE)
        names = RowTable(table, key, mark, count, reason, grants)
        check_key(row_id)
        if self._rows is None:
            # Imported at the first use: most programs use no row locks.
            from aiorwlock_remote.recipes.row_lock.lock import SessionRowLocks  # noqa: PLC0415 - seldom used

            what = f"row lock {table}/{row_id}"
            store = self._store(Capability.ROW_LOCKS, what, _SQL)
            self._rows = SessionRowLocks(self._session, store)
        return self._rows.lock(names, row_id, lease)

    def leader(
        self,
        name: ResourceId,
        *,
        on_elected: Callable[[Leader], object] | None = None,
        on_deposed: Callable[[Leader], object] | None = None,
        **options: Unpack[OptionArgs],
    ) -> Leader:
        """Return a candidate of the leader election ``name``; no I/O.

        ``async with`` it to stand by, and to lead, in the background while the body
        runs; or ``await`` its ``lead(work)``. All processes that use one name elect one
        leader among them.

        Args:
            name: the election; its lock is the mutex ``("leader", name)``.
            on_elected: called with the ``Leader`` in the event loop when it leads.
            on_deposed: called when it does no longer: the lock was lost, or is about
                to be released. Not called again until the next ``on_elected``.
            options: replace the defaults given to ``connect``; ``lease`` is the time
                after which another leads if this process or its host dies.

        Raises:
            ConfigurationError: a name, a callback or an option is not valid.
        """
        from aiorwlock_remote.recipes.leader import Leader, leader_lock  # noqa: PLC0415 - seldom used

        lock = leader_lock(self._session, name, self._options, options)
        return Leader(self._session, lock, on_elected, on_deposed)

    @overload
    def once(self, name: ResourceId, **terms: Unpack[OnceArgs]) -> Once: ...

    @overload
    def once(
        self,
        name: ResourceId,
        job: Callable[[], Awaitable[object]],
        **terms: Unpack[OnceArgs],
    ) -> Coroutine[Any, Any, bool]: ...

    def once(
        self,
        name: ResourceId,
        job: Callable[[], Awaitable[object]] | None = None,
        **terms: Unpack[OnceArgs],
    ) -> Once | Coroutine[Any, Any, bool]:
        """Run a job once in a period, on one machine of many.

        ``await locks.once(name, job, period=…)`` runs ``job()`` unless another machine
        runs it, or it has run in this period; it returns True if the job ran here.
        Without ``job`` the result is used in ``async with``, or as a decorator.

        The store's clock alone counts the time. If the lock of the running job is lost
        (the store was out of reach), the job is cancelled. A job that raised, or was
        cancelled, is not run again in its period, unless ``retry=True``.

        Args:
            name: the job; its locks are ``("once", name)`` while it runs, and
                ``("once-period", name)`` until the period is over.
            job: an async function without parameters.
            terms: how often the job may run; see ``OnceArgs``.

        Awaiting the result, entering it and calling a decorated function raise what
        the job raises, and the following.

        Raises:
            LockLost: the lock was lost while the job ran, or before the store had noted
                that the job has run: it may be run again in this period.
            AcquireUncertain: it is not known whether the store has granted the lock;
                the job has not run.
            BackendError: the store failed for longer than ``patience``; the job has not
                run, or (with ``at_most`` or ``retry``) may be run again.
            ConfigurationError: a name or a number is not valid.
        """
        from aiorwlock_remote.recipes.once import Once, once_terms  # noqa: PLC0415 - as above

        once = Once(self._session, name, self._options, once_terms(terms))
        return once if job is None else once.run(job)

    def occupancy(self, **names: Unpack[OccupancyArgs]) -> Occupancy:
        """Return a factory of handles that mark existing objects as in use; no I/O.

        A task that occupies an object leaves a record in the store: first under the key
        ``pending``, while it looks for others, then under ``using``, while it uses it.

        Args:
            names: the two keys of an object and the ages, the same in every program
                that occupies these objects; see ``OccupancyArgs``.

        Raises:
            Unsupported: this store cannot hold such records.
            ConfigurationError: a name or a number is not valid.
        """
        pending = check_pattern("pending", names.get("pending", "pending:%s"))
        using = check_pattern("using", names.get("using", "using:%s"))
        if pending == using:
            raise ConfigurationError(what="pending and using have the same name")
        ages = ExpiryAges(names.get("pending_age", 10.0), names.get("using_age", 600.0))
        chosen = pending, using, ages
        found = self._occupancy.get(chosen)
        if found is None:
            from aiorwlock_remote.recipes.occupancy import (  # noqa: PLC0415 - as above
                Occupancy,
            )

            store = self._store(Capability.OCCUPANCY, "occupied objects", _OCCUPIED)
            places = store.occupations(*chosen)
            found = Occupancy(places, event_loop=self._event_loop, will_be_closed=True)
            self._occupancy[chosen] = found
        return found

    def _store(self, needed: Capability, what: str, stores: str) -> StoreBase:
        store = self._session.client.store
        if needed not in store.capabilities:
            raise Unsupported(what=f"{what}: this store cannot hold one", hint=stores)
        return store

    def _event_loop(self) -> TaskEventLoop:
        self._session.check()
        return self._session.loop
