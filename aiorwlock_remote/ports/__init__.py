"""What the runtime asks of a store, and a store of the runtime: small Protocols.

A backend is one function, ``open(address, loop, wake, settings)``, that returns a
``Store``. It imports the core and this module only, and no other backend.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Literal, Protocol, runtime_checkable

from aiorwlock_remote._util.pending import Pending as Pending
from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address


class Capability(Flag):
    """Features of a store, which decide which conformance cases apply to it."""

    NONE = 0
    MANY_PROCESSES = auto()
    MANY_HOSTS = auto()
    NOTIFIES = auto()
    OFF_LOOP_RENEWAL = auto()
    PUBLISHED_LAYOUT = auto()
    PUSHES = auto()


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
    """State of a resource when ``Store.look`` read it. Times are microseconds.

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
class Renewal:
    """Request to renew a grant. ``lease``: microseconds; None: the grant has no end."""

    resource: Resource
    ticket: str = field(repr=False)
    lease: int | None


class Renewer(Protocol):
    """Renews grants over its own connection, blocking; used by one thread at a time."""

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all grants in ``batch``, within ``timeout`` seconds.

        Returns outcomes in the order of ``batch``: an exception for a failed renewal.
        Raises ``BackendError`` if it is not known which grants were renewed.
        """

    def close(self) -> None: ...


@runtime_checkable
class ParallelRenewer(Protocol):
    """A renewer with several connections that may be used at the same time.

    A server that does not reply then delays only the renewals that it serves.
    """

    def lane(self, resource: Resource) -> Hashable:
        """Return a key that names the connection over which the resource is renewed.

        Resources with equal keys, None included, are renewed one after the other.
        """


@runtime_checkable
class AbortableRenewer(Protocol):
    """A renewer that can be aborted, so that a silent server does not delay closing."""

    def give_up(self) -> None:
        """Make present and later renewals fail soon; callable from any thread."""


@runtime_checkable
class FailsOver(Protocol):
    """A store whose server may be replaced while its connections stay open."""

    def on_failover(self, renew_all: Callable[[], object]) -> bool:
        """From now on, call ``renew_all()`` (in any thread) after each failover.

        It renews all grants, which the new server may not know. Return False if the
        store never fails over.
        """


class Store(Protocol):
    """A store of locks: what every backend returns."""

    @property
    def capabilities(self) -> Capability: ...

    @property
    def pace(self) -> PollPolicy:
        """How often waiters must poll this store."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Send one command, which the store carries out in one atomic step.

        Returns at once. Commands for one resource are carried out in the order of the
        calls, so that a release sent after a cancelled acquire cannot overtake it. If
        the reply fails with a ``BackendError``, the command may have been carried out,
        unless the error has ``nothing_done``. If it also is a ``BackendUnavailable``,
        the same command may succeed soon.
        """

    def watch(self, resource: Resource) -> None:
        """From now on, call the ``WakeCallback`` when this client may get the resource.

        Called after the store gave this client a queue entry. If the resource became
        free between that step and this call, the callback must be called, too.
        """

    def unwatch(self, resource: Resource) -> None:
        """End ``watch``: no task of this client waits for the resource any more."""

    async def look(self, resource: Resource) -> Snapshot:
        """Read the state of a resource, and change nothing."""

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """Yield resources held or waited for: of this (encoded) type; None: of all."""

    def renewer(self) -> Renewer:
        """Return a new renewer; it opens its connection at the first use."""

    async def aclose(self) -> None:
        """Finish requests under way, and close what the store opened."""


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


@runtime_checkable
class Diagnosable(Protocol):
    """A store that can examine its server."""

    def examine(self) -> AsyncIterator[Finding]:
        """Yield findings about version, settings and rights; change nothing."""


@runtime_checkable
class ReportsConnections(Protocol):
    """A store that knows the state of its connections, for ``Locks.statistics``."""

    def connections(self) -> Mapping[str, str]:
        """Return the state of each connection or pool by its name, in words such as
        ``open``, ``lost`` or ``3 open, 2 idle``.
        """


@runtime_checkable
class LooksForChanges(Protocol):
    """A store that looks by itself for changes of what is waited for."""

    @property
    def look_interval(self) -> tuple[float, float] | None:
        """The shortest and the longest pause between two looks now, in seconds, as
        each pause begins (it then varies by a quarter); None: the store does not look.
        """


WAKE_CHANNEL = "wake channel"
"""Name of a ``HintChannel`` in ``ReportsConnections.connections``."""


@runtime_checkable
class Replicated(Protocol):
    """A store with an option: report a grant only when enough replicas have it."""

    @property
    def min_replicas(self) -> int:
        """How many replicas must have a grant before it is reported; 0: none."""


class Backend(Protocol):
    """Opens a user's own store, or a store over a client object that the user closes.

    ``connect`` takes a backend in place of a URL.
    """

    def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings, /
    ) -> Awaitable[Store]: ...


class HintChannel(Protocol):
    """A second server over which clients of a polling store send each other hints.

    Hints may be lost, late, doubled or forged: a waiter that gets one reads the store.
    """

    @property
    def where(self) -> str:
        """Address of the server, without a password."""

    def hint(self, text: str, client_ids: Sequence[str]) -> None:
        """Send a hint to these clients, whose stores get it by ``TakesHints.hinted``.

        Returns at once. If the channel is not connected, nothing is sent.
        """

    def check(self) -> None:
        """Find out whether the server still answers, and report that to the store."""

    async def aclose(self) -> None: ...


@runtime_checkable
class TakesHints(Protocol):
    """A store that polls, and looks at once when a hint comes over a ``HintChannel``.

    All methods are called in the store's loop; ``use_channel`` first.
    """

    @property
    def hints_come(self) -> bool:
        """Whether the channel works, so that hints of other clients come."""

    def hinted(self, text: str | bytes) -> None:
        """Look now at the resource that a hint is about, if it is waited for.

        ``text``: as it was sent, or anything else: any program may send any text.
        """

    def channel_changed(self, error: Exception | None) -> None:
        """Note that the channel works (None), or why it does not; also repeatedly."""

    async def use_channel(self, connect: Callable[[], HintChannel]) -> None:
        """Send hints over the channel that ``connect()`` returns; close it at the end.

        Waits a little for the first connection. An unreachable server is no error.
        Raises ``ConfigurationError`` if the store needs no channel, and what the server
        says if its address, login or rights do not fit.
        """


class ChannelOpener(Protocol):
    """The function that opens hint channels at the servers of a URL scheme."""

    def __call__(
        self,
        address: Address,
        loop: EventLoop,
        store: TakesHints,
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
    ) -> Awaitable[Store]:
        """Open the store: check that it replies and fits.

        Only the time that is awaited counts towards ``connect_timeout``: a backend with
        slow imports does them in a plain function that returns a coroutine. ``wake`` is
        to be called in the loop's thread. Raise ``ConfigurationError`` if an option or
        a part of the URL does not fit, ``BackendError`` if the store does not reply.
        """
