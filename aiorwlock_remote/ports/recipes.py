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
    """A set of mutexes in a store, as one client uses it. Times are seconds.

    Requests are sent at once and carried out in order with each other and with
    ``Store.step``, which releases and renews what was taken: a ``SetMember`` is its
    resource. They fail with ``BackendError``.
    """

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        """Take the wanted mutexes that are free and for which no other client waits.

        A refused request gets a queue entry that lives ``entry_ttl``; 0: it gets none.
        A repeated request with the same ticket gets the same reply.
        """

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        """Give up these queue entries and tickets, whatever the tickets were granted.

        Sent even if the connection has to be made anew.
        """

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add a mutex; resolve with False if it exists already."""

    def remove(self, name: str) -> Pending[bool]:
        """Remove a mutex, held or not; resolve with False if it does not exist."""

    def end(self, ticket: str) -> Pending[Reply]:
        """Release a ticket and remove its mutex in one step; replies as a release."""

    def names(self) -> AsyncIterator[str]:
        """Yield all mutexes; one that is added or removed meanwhile may be missing."""

    def watch(self) -> None:
        """Call back when anything changes in the set, if the store can notify."""

    def unwatch(self) -> None:
        """Stop: no task of this client waits any more."""


@runtime_checkable
class SupportsMutexSets(Protocol):
    """A store that can hold sets of mutexes."""

    def members(
        self, name: str, ring: Callable[[str | None], object]
    ) -> MutexSetMembers:
        """Return the set of that name, without I/O.

        ``ring(target)`` is called when it is this client's turn, ``ring(None)`` when
        the set has changed.
        """


@runtime_checkable
class SupportsKeyPairs(Protocol):
    """A store that can hold readers-writer locks on pairs of published keys.

    A ``KeyPair`` is a resource of the store like any other.
    """

    def check_pair(self, pair: KeyPair) -> None:
        """Refuse a pair whose keys this store cannot change in one step.

        Raises:
            ConfigurationError: The pair needs another name.
        """


@runtime_checkable
class SupportsRowLocks(Protocol):
    """A store that can run statements on the user's tables."""

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the store."""

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Run the statements of a plan, each committed for itself.

        No caller's cancellation reaches them. The reply comes in bounded time, and
        ``aclose`` waits for it. It fails with ``BackendError`` or
        ``ConfigurationError``; a ``BackendError`` without ``nothing_done`` leaves open
        what was done.
        """


@runtime_checkable
class NotifiesRowReleases(Protocol):
    """A store that learns when another process releases a row lock."""

    def watch_row(
        self, table: str, key: str, ring: Callable[[], object]
    ) -> Callable[[], object]:
        """Call ``ring()`` when the row may be free; return what ends that.
        ``table``: as it is written in statements. Calls may come without cause, and one
        comes when notifications begin. Releases of other programs are not notified.
        """


@runtime_checkable
class SupportsTransactions(Protocol):
    """A store whose grants can be tied to a transaction of the caller's."""

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """Lock the mutex record with this ticket until the transaction ends.

        No other client can hold the resource meanwhile, whatever becomes of the lease.

        Raises:
            ConfigurationError: The object is not a transaction of this database, has
                not begun, or does not see what was committed since.
            BackendError: Its connection failed.
        """

    async def joined(self, resource: Resource, ticket: str) -> bool:
        """Return whether a transaction has locked that mutex record.

        Raises:
            BackendError: The store failed.
        """


class OccupancyStore(Protocol):
    """Pending and using records of objects. No two attempts have the same ``who``.

    Each call is one atomic step, and no caller is cancelled in the middle of one. Calls
    fail with ``BackendError``.
    """

    @property
    def ages(self) -> ExpiryAges:
        """After how many seconds records are dead."""

    @property
    def confirms(self) -> bool:
        """Whether a look at using records may be old unless a change precedes it."""

    def check(self, thing: str) -> None:
        """Refuse an object that this store cannot hold.

        Raises:
            ConfigurationError: The object needs another name.
        """

    def sign(self, label: str) -> str:
        """Return the id of a contender with that label, for one attempt."""

    async def write(self, thing: str, who: str) -> None:
        """Write a pending record; its age begins when it is new."""

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the pending records of other contenders."""

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """Return the using records of other contenders."""

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Remove a record that a look found, if it has not changed since."""

    async def promote(self, thing: str, who: str) -> bool:
        """Turn the pending record into a using one, if it still exists."""

    async def extend(self, thing: str, who: str) -> bool:
        """Restart the age of a using record; return False if it is gone."""

    async def remove(self, thing: str, who: str) -> bool:
        """Remove both records, if they exist; return whether there was a using one."""


@runtime_checkable
class SupportsOccupancy(Protocol):
    """A store that can hold contenders' records beside its locks."""

    def occupations(self, pending: str, using: str, ages: ExpiryAges) -> OccupancyStore:
        """Return the records under these names, without I/O; ``%s`` is the object.

        Raises:
            ConfigurationError: A name does not fit.
        """
