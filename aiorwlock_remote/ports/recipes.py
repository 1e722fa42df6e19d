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
    """The mutexes of one set in a store, as one client uses them.

    Requests are sent at once and carried out in order with each other and with
    ``Store.step``, which also releases and renews the mutexes taken (with a
    ``SetMember`` as the resource). They fail with ``BackendError``. ``lease``:
    microseconds for which a mutex of this set is held unless renewed.
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
    ) -> Pending[None]:
        """Remove these queue entries, and release what the tickets were granted.

        ``places``: targets of the entries. If needed, the store reconnects first.
        """

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add a mutex to the set; the reply is False if it exists already."""

    def remove(self, name: str) -> Pending[bool]:
        """Remove a mutex, held or not; the reply is False if it does not exist."""

    def end(self, ticket: str) -> Pending[Reply]:
        """Release a ticket, and remove its mutex from the set, in one step."""

    def names(self) -> AsyncIterator[str]:
        """Yield all mutexes; one that is added or removed meanwhile may be missing."""

    def watch(self) -> None:
        """From now on, call the ``ring`` given to ``members`` when the set changes."""

    def unwatch(self) -> None:
        """End ``watch``: no task of this client waits any more."""


@runtime_checkable
class SupportsMutexSets(Protocol):
    """A store that can hold sets of mutexes."""

    def members(
        self, name: str, ring: Callable[[str | None], object]
    ) -> MutexSetMembers:
        """Return the set of that name, without I/O.

        ``ring(target)`` is called in the loop's thread when this client may take the
        mutex ``target``, ``ring(None)`` when the set has changed.
        """


@runtime_checkable
class SupportsKeyPairs(Protocol):
    """A store that can hold readers-writer locks on ``KeyPair`` resources."""

    def check_pair(self, pair: KeyPair) -> None:
        """Raise ``ConfigurationError`` unless one step can change both keys."""


@runtime_checkable
class SupportsRowLocks(Protocol):
    """A store that can run SQL statements on the user's tables."""

    @property
    def dialect(self) -> Dialect: ...

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Run a plan's statements, each committed at once; return the plan's result.

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
        """Call ``ring()`` whenever the row may be free; return a function to stop it.

        ``table``: as in statements. ``ring`` is called in the loop's thread: also when
        notifications begin or without a cause, and not for other programs' releases.
        """


@runtime_checkable
class SupportsTransactions(Protocol):
    """A store whose grants can be tied to a database transaction of the caller's."""

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """Lock the ticket's mutex record in the database until the transaction ends.

        Until then no other client can hold the resource, even if the lease ends. Raise
        ``ConfigurationError`` if the object is not a transaction of this database, has
        not begun, or does not see what was committed since; ``BackendError`` if its
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
    attempt.
    """

    @property
    def ages(self) -> ExpiryAges: ...

    @property
    def confirms(self) -> bool:
        """Whether ``usings`` may be outdated, except after a change by this process."""

    def check(self, thing: str) -> None:
        """Raise ``ConfigurationError`` if the store cannot hold this object's name."""

    def sign(self, label: str) -> str:
        """Return a new id for one attempt of a process with this label."""

    async def write(self, thing: str, who: str) -> None:
        """Write a new pending record, whose age counts from now."""

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the pending records of attempts other than ``who``."""

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the using records of attempts other than ``who``."""

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Remove a found record, pending or ``using``, unless it has changed since."""

    async def promote(self, thing: str, who: str) -> bool:
        """Turn the pending record into a using one; return False if it is gone."""

    async def extend(self, thing: str, who: str) -> bool:
        """Restart the age of a using record; return False if it is gone."""

    async def remove(self, thing: str, who: str) -> bool:
        """Remove both records of ``who``; return True if one was a using record."""


@runtime_checkable
class SupportsOccupancy(Protocol):
    """A store that can hold, beside its locks, which process wants or has an object."""

    def occupations(self, pending: str, using: str, ages: ExpiryAges) -> OccupancyStore:
        """Return the store of the records with these names; do no I/O.

        Each name has one ``%s``, for the object; otherwise ``ConfigurationError``.
        """
