"""What the recipes ask of a store that supports them, beyond ``ports.Store``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.mutex_set import TakeReplies, TakeRequest
from aiorwlock_remote.core.names import KeyPair, Resource
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.core.row_dialects import Dialect

T = TypeVar("T")


class MutexSetMembers(Protocol):
    """A group of interchangeable mutexes (a mutex set) in a store, as a client uses it.

    Requests are sent at once and carried out in the order of the calls, also those of
    ``Store.step``, which releases and renews the mutexes taken (with a ``SetMember`` as
    the resource). They fail with ``BackendError``. ``lease``: microseconds for which a
    mutex of this set is held unless renewed.
    """

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        """Take each wanted mutex that is free and for which no other client waits.

        A refused request gets a queue entry for ``entry_ttl`` seconds; 0: no entry. A
        repeated request with the same ticket gets the same reply.
        """

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[Reply]:
        """Remove this client's queue entries, and release what the tickets hold.

        ``places``: targets of the entries (names, or ``ANY_MEMBER``). ``lease``: the
        set's, microseconds. If needed, the store reconnects first.
        """

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add a mutex; False if it exists. ``lease``: the set's, microseconds."""

    def remove(self, name: str) -> Pending[bool]:
        """Remove a mutex, held or not; the reply is False if it does not exist."""

    def end(self, ticket: str) -> Pending[Reply]:
        """Release a ticket, and remove its mutex from the set, in one step."""

    def names(self) -> AsyncIterator[str]:
        """Yield all names of mutexes; one added or removed meanwhile may be missing."""

    def watch(self) -> None:
        """From now on, call the ``ring`` given to ``members`` when the set changes."""

    def unwatch(self) -> None:
        """End the calls that ``watch`` asked for: no task of this client waits now."""


@runtime_checkable
class SupportsMutexSets(Protocol):
    """A store that can hold mutex sets: groups of interchangeable mutexes."""

    def members(
        self, name: str, ring: Callable[[str | None], object]
    ) -> MutexSetMembers:
        """Return the group of interchangeable mutexes with that name, without I/O.

        ``ring(target)`` is called in the loop's thread when this client may take the
        mutex ``target``, ``ring(None)`` when the set has changed.
        """


@runtime_checkable
class SupportsKeyPairs(Protocol):
    """A store that can hold readers-writer locks made of two published keys."""

    def check_pair(self, pair: KeyPair) -> None:
        """Raise ``ConfigurationError`` unless one atomic step can change both keys."""


@runtime_checkable
class SupportsRowLocks(Protocol):
    """A store that can run SQL statements on the user's tables."""

    @property
    def dialect(self) -> Dialect: ...

    def expect_row_renewals(self) -> None:
        """Prepare to renew row locks, as one with a lease is about to be asked for.

        Called once, in the event loop. A login would take a good part of a short lease.
        """

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Run the statements that a generator (``plan``) yields; return its result.

        Each statement is committed at once, and its result sent to the generator.
        Cancelling a caller does not stop them. The reply comes in bounded time, and
        ``aclose`` waits for it. It fails with ``ConfigurationError`` or
        ``BackendError``. Unless that error has ``nothing_done``, some statements may
        have been carried out.
        """


@runtime_checkable
class NotifiesRowReleases(Protocol):
    """A store that is notified when another process releases a row lock."""

    def watch_row(
        self, table: str, key: str, ring: Callable[[], object]
    ) -> Callable[[], object]:
        """Call ``ring()`` whenever the row may be free; return a function to stop that.

        ``table``: as in SQL. ``key``: the row's key as text. ``ring`` is called in the
        loop's thread: also when notifications begin or without a cause, and not for
        other programs' releases.
        """


@runtime_checkable
class SupportsTransactions(Protocol):
    """A store whose grants can be tied to a database transaction of the caller's."""

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """Lock the ticket's mutex record in the database until the transaction ends.

        Until then no other client can hold the resource, even if the lease ends. Raise
        ``ConfigurationError`` if the object is not a transaction of this database, has
        not begun, or reads a snapshot older than the grant; ``BackendError`` if its
        connection fails.
        """

    async def joined(self, resource: Resource, ticket: str) -> bool:
        """Return True if a transaction has locked the mutex record of this ticket.

        Raise ``BackendError`` if the store fails.
        """


class OccupancyStore(Protocol):
    """Store of records of processes that want (pending) or have (using) an object.

    Each call is one atomic step, and no caller is cancelled in the middle of one. Calls
    fail with ``BackendError``. ``thing``: an object's name. ``who``: the id of one
    attempt of a process to get the object.
    """

    @property
    def ages(self) -> ExpiryAges: ...

    @property
    def confirms(self) -> bool:
        """Whether ``usings`` may be outdated, except after a change by this process."""

    def check(self, thing: str) -> None:
        """Raise ``ConfigurationError`` if the store cannot hold this object's name."""

    def sign(self, label: str) -> str:
        """Return a new id for an attempt to get an object, by a process so labelled."""

    async def write(self, thing: str, who: str) -> None:
        """Write a new pending record, whose age counts from now."""

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return records of other attempts than ``who`` that want the object."""

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return records of other attempts than ``who`` that use the object now."""

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Remove a record that was found, unless it has been written anew since.

        ``using``: whether its process has the object, not only wants it.
        """

    async def promote(self, thing: str, who: str) -> bool:
        """Turn the pending record of ``who`` into a using one; False if it is gone."""

    async def extend(self, thing: str, who: str) -> bool:
        """Restart the age of ``who``'s using record; return False if it is gone."""

    async def remove(self, thing: str, who: str) -> bool:
        """Remove both records of ``who``; return True if it had the object (using)."""


@runtime_checkable
class SupportsOccupancy(Protocol):
    """A store that can record which processes want or have an object."""

    def occupations(self, pending: str, using: str, ages: ExpiryAges) -> OccupancyStore:
        """Return the store of records with these name patterns; do no I/O.

        ``pending``: of processes that want an object, ``using``: of those that have it.
        Each has one ``%s``, for the object; otherwise ``ConfigurationError``.
        """
