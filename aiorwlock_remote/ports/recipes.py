"""What the recipes ask of a store that can hold them, beyond ``ports.Store``."""

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
    """A set of mutexes in a store, as one process uses it. Seconds.

    Requests are handed over at once and carried out in order with each other and with
    ``Store.step``, which releases and renews what was taken: a ``Member`` is its
    resource. Fail with ``BackendError``.
    """

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        """Take what is wanted, if it is free and nobody's turn comes before.

        Refused, each gets a place in the queue for so long; 0: takes none. Asking
        again with the same ticket is answered as before.
        """

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        """Nobody here waits for these any more; what the tickets were given goes back.

        Sent even if the connection has to be made anew.
        """

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Add a mutex; False if it is there."""

    def remove(self, name: str) -> Pending[bool]:
        """Remove a mutex, held or not; False if there is none."""

    def end(self, ticket: str) -> Pending[Reply]:
        """Release, and remove the mutex in the same step; answers as a release."""

    def names(self) -> AsyncIterator[str]:
        """All mutexes; one added or removed meanwhile may be among them or not."""

    def watch(self) -> None:
        """Somebody waits here: ring when anything changes, if the store can tell."""

    def unwatch(self) -> None:
        """Nobody does."""


@runtime_checkable
class SupportsMutexSets(Protocol):
    """A store that can hold sets of mutexes."""

    def members(
        self, name: str, ring: Callable[[str | None], object]
    ) -> MutexSetMembers:
        """The set of that name; no I/O.

        ``ring(target)``: it is our turn; ``ring(None)``: something has changed.
        """


@runtime_checkable
class SupportsKeyPairs(Protocol):
    """A store that can hold readers-writer locks on pairs of published keys.

    A ``KeyPair`` is a resource of it like any other.
    """

    def check_pair(self, pair: KeyPair) -> None:
        """Refuse a pair whose keys this store cannot change in one step.

        Raises:
            ConfigurationError: it has to be named otherwise.
        """


@runtime_checkable
class SupportsRowLocks(Protocol):
    """A store that can carry out statements on tables of the user's."""

    @property
    def dialect(self) -> Dialect:
        """How it wants them."""

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Carry out its statements, beyond any caller's cancellation.

        Each for itself. Answers in a bounded time, and ``aclose`` waits for it. Fails
        with ``BackendError`` or ``ConfigurationError``; a ``BackendError`` without
        ``nothing_done`` leaves it open what was done.
        """


@runtime_checkable
class NotifiesRowReleases(Protocol):
    """A store that is told when a row lock was given back by another process."""

    def watch_row(
        self, table: str, key: str, ring: Callable[[], object]
    ) -> Callable[[], object]:
        """Ring when the row may be free, until what this returns is called.

        ``table``: as it stands in statements. It may ring for nothing, and does when it
        begins to be told; of what other programs do it is told nothing.
        """


@runtime_checkable
class SupportsTransactions(Protocol):
    """A store whose grants can be tied to a transaction of the caller's."""

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """Lock the seat in which the ticket sits, until that transaction ends.

        Nobody else can sit there meanwhile, whatever becomes of the lease.

        Raises:
            ConfigurationError: it is no transaction of this database, or none that has
                begun, or it does not see what was committed since.
            BackendError: its connection failed.
        """

    async def joined(self, resource: Resource, ticket: str) -> bool:
        """Whether a transaction has that seat locked.

        Raises:
            BackendError: the store failed.
        """


class OccupancyStore(Protocol):
    """Who is pending at objects, and who uses them. ``who`` is never the same twice.

    Each call is one atomic step, and no caller is cancelled in the middle of one. Fail
    with ``BackendError``.
    """

    @property
    def ages(self) -> ExpiryAges:
        """After which records are dead."""

    @property
    def confirms(self) -> bool:
        """Whether a look at usings may be old unless one's own change went before."""

    def check(self, thing: str) -> None:
        """Refuse an object that this store cannot hold.

        Raises:
            ConfigurationError: it has to be named otherwise.
        """

    def sign(self, label: str) -> str:
        """Who a contender with that label is, for one attempt."""

    async def write(self, thing: str, who: str) -> None:
        """A pending record. Where anything is made anew, its age begins."""

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """The others that are pending."""

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        """The others that are using."""

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        """Take out what was found, if it is what it was then."""

    async def promote(self, thing: str, who: str) -> bool:
        """Make the pending record a using one, if it is still there."""

    async def extend(self, thing: str, who: str) -> bool:
        """Let the age of a using record begin anew; False if it is gone."""

    async def remove(self, thing: str, who: str) -> bool:
        """Take out both records, if they are there; whether it was using."""


@runtime_checkable
class SupportsOccupancy(Protocol):
    """A store that can hold objects' contenders beside its locks."""

    def occupations(self, pending: str, using: str, ages: ExpiryAges) -> OccupancyStore:
        """Those under such names; no I/O. ``%s`` in each stands for the object.

        Raises:
            ConfigurationError: names that cannot be used.
        """
