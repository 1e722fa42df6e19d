"""What the runtime asks of a store, and a store of the runtime.

A backend is one function, ``open(address, loop, wake, settings)``, that returns a
``StoreBase``. It imports this module and, if its store compares and sets,
``aiorwlock_remote.cas``; and no other backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from aiorwlock_remote._util.callback_thread import CallbackThread
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.tls import TLS_OPTIONS, TlsOptions, tls_options_of
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    NotHeld,
    Renew,
    Renewed,
    Reply,
)
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource, resource_from_key, resource_from_row
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy, micros
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.renewers import Renewal, RenewerBase, StepRenewer

if TYPE_CHECKING:
    from aiorwlock_remote.core.names import KeyPair
    from aiorwlock_remote.core.occupancy import ExpiryAges
    from aiorwlock_remote.core.row import Plan, Statement
    from aiorwlock_remote.core.row_dialects import Dialect
    from aiorwlock_remote.ports.recipes import MutexSetMembers, OccupancyStore

__all__ = [
    "BEYOND_LOCKS",
    "TLS_OPTIONS",
    "WAKE_CHANNEL",
    "Address",
    "Backend",
    "CallbackThread",
    "Capability",
    "ChannelOpener",
    "Clock",
    "Command",
    "Doorman",
    "EventLoop",
    "Finding",
    "ForeignHolder",
    "Grant",
    "HintChannel",
    "MutexRecord",
    "NotHeld",
    "Opener",
    "Pending",
    "PollPolicy",
    "PushedGrant",
    "Renew",
    "Renewal",
    "Renewed",
    "RenewerBase",
    "Reply",
    "Resource",
    "Snapshot",
    "Step",
    "StepRenewer",
    "StoreBase",
    "StoreSettings",
    "TlsOptions",
    "WakeCallback",
    "dumps",
    "loads",
    "log_event",
    "micros",
    "resource_from_key",
    "resource_from_row",
    "tls_options_of",
    "transition",
]

T = TypeVar("T")


class Capability(Flag):
    """What a store can do. ``StoreBase.capabilities`` has what a store declares.

    The library calls a method that goes with a capability only if the store declares
    the capability. The conformance suite runs the cases of the declared capabilities.
    """

    NONE = 0
    MANY_PROCESSES = auto()
    """The processes of one host share the locks."""
    MANY_HOSTS = auto()
    """The hosts of a network share the locks."""
    NOTIFIES = auto()
    """The store wakes waiting clients; a poll is a backup, once a second at most."""
    OFF_LOOP_RENEWAL = auto()
    """Grants are renewed also while the user's event loop is blocked: ``renewer``."""
    PUBLISHED_LAYOUT = auto()
    """Other programs can take and release the locks by the published mutex record."""
    PUSHES = auto()
    """A message of the store can grant a waiting writer its lock. Demands
    ``NOTIFIES`` and ``PollPolicy.pushes``.
    """
    HINTS = auto()
    """Waiters poll, unless clients hint to each other over a channel
    (``connect(wake=…)``): ``use_channel``, ``channel_changed``, ``hinted``,
    ``hints_come``.
    """
    FAILS_OVER = auto()
    """The server may be replaced while connections stay open: ``on_failover``."""
    REPLICAS = auto()
    """The store obeys ``StoreSettings.min_replicas``."""
    TRANSACTIONS = auto()
    """Grants can be tied to a transaction of the user's: ``join``, ``joined``."""
    ROW_LOCKS = auto()
    """Row locks on tables of the user's: ``dialect``, ``expect_row_renewals``,
    ``carry``.
    """
    ROW_RELEASES = auto()
    """The store notifies of released row locks: ``watch_row``."""
    MUTEX_SETS = auto()
    """Groups of interchangeable mutexes: ``members``."""
    KEY_PAIRS = auto()
    """Readers-writer locks made of two published keys: ``check_pair``."""
    OCCUPANCY = auto()
    """Records of processes that want or have an object: ``occupations``."""


BEYOND_LOCKS: Capability = (
    Capability.HINTS
    | Capability.FAILS_OVER
    | Capability.REPLICAS
    | Capability.TRANSACTIONS
    | Capability.ROW_LOCKS
    | Capability.ROW_RELEASES
    | Capability.MUTEX_SETS
    | Capability.KEY_PAIRS
    | Capability.OCCUPANCY
)
"""The capabilities without which a store has all plain locks (mutex, rwlock)."""


class Clock(Protocol):
    """Source of local times, monotonic and Unix, in seconds."""

    def now(self) -> float:
        """Return monotonic seconds; this clock runs on while the host is suspended."""

    def wall(self) -> float:
        """Return Unix time in seconds."""


class EventLoop(Protocol):
    """Adapter of the asyncio or trio event loop in which a ``Locks`` runs."""

    @property
    def clock(self) -> Clock: ...

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run the function in the loop's thread soon; callable from any thread.

        If the loop has ended, the function is dropped.
        """

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run ``function()`` as a task that is not cancelled when its caller is."""


# Microseconds by which a record must be newer than the store's clock to count.
MIN_CLOCK_SETBACK = 1_000_000


class WakeCallback(Protocol):
    """Function by which a store wakes the waiters of its client."""

    def __call__(
        self, resource: Resource, seconds: float, pushed: PushedGrant | None = None, /
    ) -> object:
        """Tell that a waiter may get the resource in so many seconds (0: now).

        ``pushed``: the grant that a message of the store names, if it does; the store
        need not check it.
        """


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Options of ``connect`` that a store needs. Times are seconds.

    Attributes:
        client_id: Random id of this ``Locks``, in its queue entries and messages.
        prefix: To be put before keys made of unencoded names only (mutex sets, key
            pairs, occupied objects); ``Resource.type`` begins with the prefix already.
        connect_timeout: Limit of the time that opening the store may take.
        fence_memory: How long after its last use a resource's doorman is kept.
        min_replicas: Report a grant only when so many replicas of the server have it.
    """

    client_id: str
    prefix: str = ""
    connect_timeout: float = 5.0
    fence_memory: float = 3600.0
    min_replicas: int = 0


@dataclass(frozen=True, slots=True)
class ForeignHolder:
    """A holder that another program wrote; ``value`` is the text found in the store.

    ``expires``: microseconds of the store's clock; None: never. Its age is not known.
    """

    value: str = field(repr=False)
    mode: Mode
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a resource when ``StoreBase.look`` read it. Times are microseconds.

    ``now``: the store's clock; ``wall``: its wall clock at that moment, to show times
    to people. ``record``: the doorman; ``seat``: the mutex record. ``guests``: holders
    that other programs wrote, in stores in which several can hold at once.
    """

    resource: Resource
    record: Doorman
    seat: MutexRecord | None
    now: int
    wall: int
    guests: tuple[ForeignHolder, ...] = ()

    @property
    def set_back(self) -> int:
        """Microseconds by which the store's clock was set back since the last step."""
        # 0 if leases do not count by a wall clock, and for small differences: the nodes
        # of a cluster may differ.
        ahead = self.record.updated - self.now
        return ahead if self.wall == self.now and ahead >= MIN_CLOCK_SETBACK else 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a store (version, setting, right), and what it means for locks.

    ``rating``: "bad": should be changed; "note": should be known; "good": needs
    nothing.
    """

    name: str
    value: str
    meaning: str
    rating: Literal["good", "note", "bad"] = "good"


WAKE_CHANNEL = "wake channel"
"""Name of a ``HintChannel`` in ``StoreBase.connections``."""


class StoreBase:
    """Base of a store of locks: what every backend returns.

    Each store overrides ``step``, ``look`` and ``scan``. The other methods have
    defaults; some go with a member of ``Capability``, which the store then declares.
    All methods are called in the event loop's thread.

    Attributes:
        capabilities: What the store can do.
        poll_policy: How often waiters poll this store.
        event_loop: The event loop of the ``Locks`` that opened the store.
        wake: Wakes the waiters of a resource, in the event loop's thread.
        settings: The options of ``connect``.
    """

    capabilities: Capability = Capability.NONE
    poll_policy: PollPolicy = PollPolicy()

    def __init__(
        self, event_loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> None:
        self.event_loop: EventLoop = event_loop
        self.wake: WakeCallback = wake
        self.settings: StoreSettings = settings

    # ------------------------------------------------------------------------ locks

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Send one command, which the store carries out in one atomic step.

        Returns at once. Commands for one resource are carried out in the order of the
        calls, so that a release sent after a cancelled acquire cannot overtake it.
        Cancelling a task that awaits the reply does not cancel the command.

        If the reply fails with a ``BackendError``, the command may have been carried
        out, unless the error has ``nothing_done``. If it also is a
        ``BackendUnavailable``, the same command may succeed soon.
        """
        raise NotImplementedError

    def prepared(
        self, resource: Resource, command: Command
    ) -> Callable[[], Pending[Reply]]:
        """Return a function that calls ``step`` with these arguments, once or never.

        The waiting client asks for it before it knows whether it will send the command.
        A store whose requests take time to encode overrides it, and does that now.
        """
        return partial(self.step, resource, command)

    def prepared_acquire(
        self,
        resource: Resource,  # noqa: ARG002 - overridden
        acquire: Acquire,  # noqa: ARG002 - likewise
    ) -> Callable[[Claim], Pending[Reply]] | None:
        """Return a function that sends this acquire, but for the claim it is given, and
        is called again and again. ``acquire`` has one claim, and asks for no other
        entry (``more``).

        By default None: the client calls ``step``. A store whose requests take time to
        encode overrides it, and encodes now what all of them have in common.
        """
        return None

    def prepared_release(
        self,
        resource: Resource,  # noqa: ARG002 - overridden
    ) -> Callable[[str], Pending[Reply]] | None:
        """Return a function that sends the release of the ticket it is given, and of
        nothing else. By default None, as ``prepared_acquire``.
        """
        return None

    async def look(self, resource: Resource) -> Snapshot:
        """Read the state of a resource, and change nothing.

        Commands sent before the call are visible in the result.
        """
        raise NotImplementedError

    def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        """Yield resources held or waited for: of this (encoded) type; None: of all."""
        raise NotImplementedError

    def watch(self, resource: Resource) -> None:
        """From now on, call ``wake`` when this client may get the resource.

        Called after the store gave this client a queue entry. If the resource became
        free between that step and this call, ``wake`` must be called, too. By default:
        waiters poll, as ``poll_policy`` says.
        """

    def unwatch(self, resource: Resource) -> None:
        """End ``watch``: no task of this client waits for the resource any more."""

    def renewer(self) -> RenewerBase:
        """Return a new renewer; it opens its connection at the first use.

        By default, renewals are steps in the event loop: late if that is blocked. A
        store that returns another declares ``OFF_LOOP_RENEWAL``.
        """
        return StepRenewer(self)

    async def aclose(self) -> None:
        """Finish requests under way, and close what the store opened.

        Called once. If the caller is cancelled, the call continues.
        """

    # ------------------------------------------------------------------ diagnostics

    async def examine(self) -> AsyncGenerator[Finding, None]:
        """Yield findings about version, settings and rights; change nothing."""
        for finding in _NO_FINDINGS:
            yield finding

    def connections(self) -> Mapping[str, str]:
        """Return the state of each connection or pool by its name, in words such as
        ``open``, ``lost`` or ``3 open, 2 idle``, for ``Locks.statistics``.
        """
        return {}

    @property
    def poll_interval(self) -> tuple[float, float] | None:
        """The shortest and the longest pause between two looks of a store that looks
        for changes by itself, in seconds, as each pause begins (it then varies by a
        quarter); None: the store does not look.
        """
        return None

    # ------------------------------------------------------------ Capability.FAILS_OVER

    def on_failover(self, renew_all: Callable[[], object]) -> None:
        """From now on, call ``renew_all()`` (in any thread) after each failover.

        It renews all grants, which the new server may not know.
        """
        raise NotImplementedError

    # ----------------------------------------------------------------- Capability.HINTS

    @property
    def hints_come(self) -> bool:
        """Whether the channel works, so that hints of other clients come."""
        return False

    def hinted(self, text: str | bytes) -> None:
        """Look now at the resource that a hint is about, if it is waited for.

        ``text``: as it was sent, or anything else: any program may send any text.
        """
        raise NotImplementedError

    def channel_changed(self, error: Exception | None) -> None:
        """Note that the channel works (None), or why it does not; also repeatedly."""
        raise NotImplementedError

    async def use_channel(self, connect: Callable[[], HintChannel]) -> None:
        """Send hints over the channel that ``connect()`` returns; close it at the end.

        Called before all other methods. Waits a little for the first connection. An
        unreachable server is no error. Raises ``ConfigurationError`` if the store needs
        no channel, and what the server says if its address, login or rights do not fit.
        """
        raise NotImplementedError

    # ---------------------------------------------------------- Capability.TRANSACTIONS

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """Lock the ticket's mutex record in the database until the transaction ends.

        Until then no other client can hold the resource, even if the lease ends. Raise
        ``ConfigurationError`` if the object is not a transaction of this database, has
        not begun, or reads a snapshot older than the grant; ``BackendError`` if its
        connection fails.
        """
        raise NotImplementedError

    async def joined(self, resource: Resource, ticket: str) -> bool:
        """Return True if a transaction has locked the mutex record of this ticket.

        Raise ``BackendError`` if the store fails.
        """
        raise NotImplementedError

    # ------------------------------------------- Capability.ROW_LOCKS and ROW_RELEASES

    @property
    def dialect(self) -> Dialect:
        """The SQL of the database."""
        raise NotImplementedError

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
        raise NotImplementedError

    def watch_row(
        self, table: str, key: str, ring: Callable[[], object]
    ) -> Callable[[], object]:
        """Call ``ring()`` whenever the row may be free; return a function to stop that.

        ``table``: as in SQL. ``key``: the row's key as text. ``ring`` is called in the
        loop's thread: also when notifications begin or without a cause, and not for
        other programs' releases.
        """
        raise NotImplementedError

    # ------------------------------- Capability.MUTEX_SETS, KEY_PAIRS and OCCUPANCY

    def members(
        self, name: str, ring: Callable[[str | None], object]
    ) -> MutexSetMembers:
        """Return the group of interchangeable mutexes with that name, without I/O.

        ``ring(target)`` is called in the loop's thread when this client may take the
        mutex ``target``, ``ring(None)`` when the set has changed.
        """
        raise NotImplementedError

    def check_pair(self, pair: KeyPair) -> None:
        """Raise ``ConfigurationError`` unless one atomic step can change both keys."""
        raise NotImplementedError

    def occupations(self, pending: str, using: str, ages: ExpiryAges) -> OccupancyStore:
        """Return the store of records with these name patterns; do no I/O.

        ``pending``: of processes that want an object, ``using``: of those that have it.
        Each has one ``%s``, for the object; otherwise ``ConfigurationError``.
        """
        raise NotImplementedError


_NO_FINDINGS: tuple[Finding, ...] = ()


class Backend(Protocol):
    """Opens a user's own store, or a store over a client object that the user closes.

    ``connect`` takes a backend in place of a URL.
    """

    def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings, /
    ) -> Awaitable[StoreBase]: ...


class HintChannel(Protocol):
    """A second server over which clients of a polling store send each other hints.

    Hints may be lost, late, doubled or forged: a waiter that gets one reads the store.
    """

    @property
    def where(self) -> str:
        """Address of the server, without a password."""

    def hint(self, text: str, client_ids: Sequence[str]) -> None:
        """Send a hint to these clients, whose stores get it by ``StoreBase.hinted``.

        Returns at once. If the channel is not connected, nothing is sent.
        """

    def check(self) -> None:
        """Find out whether the server still answers, and report that to the store."""

    async def aclose(self) -> None: ...


class ChannelOpener(Protocol):
    """The function that opens hint channels at the servers of a URL scheme."""

    def __call__(
        self,
        address: Address,
        loop: EventLoop,
        store: StoreBase,
        settings: StoreSettings,
        /,
    ) -> HintChannel:
        """Return a channel that connects in the background, and again when it is lost.

        Hints to ``settings.client_id``, and changes of the connection, go to ``store``.
        Raises ``ConfigurationError`` if a part or an option of the URL is invalid.
        """


class Opener(Protocol):
    """The function that a backend registers for its URL scheme: opens a store."""

    def __call__(
        self,
        address: Address,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        /,
    ) -> Awaitable[StoreBase]:
        """Open the store: check that it replies and fits.

        Only the time that is awaited counts towards ``connect_timeout``: a backend with
        slow imports does them in a plain function that returns a coroutine. ``wake`` is
        to be called in the loop's thread. Raise ``ConfigurationError`` if an option or
        a part of the URL does not fit, ``BackendError`` if the store does not reply.
        """
