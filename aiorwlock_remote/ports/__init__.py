"""What the runtime asks of a store, and a store of the runtime: small Protocols.

A backend is one function, ``open(address, loop, wake, settings)``, that returns a
``Store``. It needs to know the core and this module only; backends never know each
other.
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
from socket import socket
from typing import Literal, Protocol, runtime_checkable

from aiorwlock_remote._util.pending import Pending as Pending
from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address


class Capability(Flag):
    """What a store can do; selects the conformance cases that apply to it."""

    NONE = 0
    MANY_PROCESSES = auto()
    MANY_HOSTS = auto()
    NOTIFIES = auto()
    OFF_LOOP_RENEWAL = auto()
    PUBLISHED_LAYOUT = auto()


class Clock(Protocol):
    """Local time, in seconds."""

    def now(self) -> float:
        """Return monotonic seconds that go on while the host is suspended."""

    def wall(self) -> float:
        """Return Unix time in seconds."""


class EventLoop(Protocol):
    """The event loop a ``Locks`` belongs to."""

    @property
    def clock(self) -> Clock: ...

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run the function in the loop's thread, soon; from any thread.

        A loop that has ended drops it.
        """

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run the function as a task that no caller's cancellation reaches."""


@runtime_checkable
class SocketEventLoop(Protocol):
    """An event loop that calls back when a socket can be read."""

    def reads(
        self, sock: socket, function: Callable[[], object]
    ) -> Callable[[], object]:
        """Call the function whenever ``sock`` can be read; return what ends that.

        Both run in the loop's thread. The loop handles what the function raises.

        Raises:
            NotImplementedError: This loop cannot watch sockets.
        """

    def at_end(self, function: Callable[[], object]) -> None:
        """Run the function after this turn's tasks; from the loop's thread only."""


# Microseconds by which a record must be newer than the store's clock to count.
MIN_CLOCK_SETBACK = 1_000_000

WakeCallback = Callable[[Resource, float], None]
"""``wake(resource, seconds)``: a waiter may be granted in so many seconds."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Options of ``connect`` that a store needs. Times are seconds.

    Attributes:
        client_id: Random id of this ``Locks``, in its queue entries and messages.
        prefix: The types of resources begin with it already. A store puts it only
            before keys made of unencoded names (mutex sets, key pairs, occupied
            objects).
        connect_timeout: Time to open the store.
        fence_memory: How long after its last use a resource is remembered.
        min_replicas: A ``Replicated`` store reports no grant that fewer replicas have.
    """

    client_id: str
    prefix: str = ""
    connect_timeout: float = 5.0
    fence_memory: float = 3600.0
    min_replicas: int = 0


@dataclass(frozen=True, slots=True)
class ForeignHolder:
    """A holder that another program wrote, by its ``value``; its age is not known.

    ``expires``: microseconds of the store's clock; None: never.
    """

    value: str = field(repr=False)
    mode: Mode
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a resource. Times are microseconds of the store's clock.

    ``wall``: the store's wall clock at ``now``, to show times to people. ``guests``:
    foreign holders of stores in which several can hold at once.
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
        # 0 where leases do not count by a wall clock, and for small differences,
        # because the nodes of a cluster may differ. A live holder renews by the new
        # time, and so changes the record.
        ahead = self.record.updated - self.now
        return ahead if self.wall == self.now and ahead >= MIN_CLOCK_SETBACK else 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """A grant to renew. ``lease`` in microseconds; None: the grant has no end."""

    resource: Resource
    ticket: str = field(repr=False)
    lease: int | None


class Renewer(Protocol):
    """Blocking renewals over an own connection; used by one thread at a time."""

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all grants; return outcomes in order, an exception for a failed one.

        Gives up after ``timeout`` seconds.

        Raises:
            BackendError: It is not known which grants were renewed.
        """

    def close(self) -> None:
        """Close the connection, if it was opened."""


@runtime_checkable
class ParallelRenewer(Protocol):
    """A renewer with several connections that may be used at the same time.

    A server that does not reply then delays only its own renewals.
    """

    def lane(self, resource: Resource) -> Hashable:
        """Return the connection over which the resource is renewed.

        Renewals of one lane go one after the other; all with None share a lane.
        """


@runtime_checkable
class AbortableRenewer(Protocol):
    """A renewer that can be aborted, so that a silent server delays no close."""

    def give_up(self) -> None:
        """Make renewals under way, and all later ones, fail soon; from any thread.

        May be called again, for a renewal that had just begun.
        """


@runtime_checkable
class FailsOver(Protocol):
    """A store whose server may be replaced while its connections stay open."""

    def on_failover(self, renew_all: Callable[[], object]) -> bool:
        """Call ``renew_all()``, in any thread, when another server has taken over.

        The new server may not know the grants of the one before. Return False if the
        store never fails over.
        """


class Store(Protocol):
    """A store of locks."""

    @property
    def capabilities(self) -> Capability:
        """What the store can do."""

    @property
    def pace(self) -> PollPolicy:
        """How the store wants its waiters to wait."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Send one command, which the store carries out in one atomic step.

        Returns at once. Commands for one resource are carried out in the order of the
        calls, so that a release sent after a cancelled acquire cannot overtake it. The
        reply fails with ``BackendError``, which leaves open whether the command was
        carried out, unless ``nothing_done`` is set: then a ``BackendUnavailable`` means
        that the same command may succeed soon.
        """

    def watch(self, resource: Resource) -> None:
        """Call back for this resource from now on, and at once if it is free for us.

        Called after the store gave this client a queue entry: a change between that
        step and this call must not go unnoticed.
        """

    def unwatch(self, resource: Resource) -> None:
        """Stop: no task of this client waits there any more."""

    async def look(self, resource: Resource) -> Snapshot:
        """Read the state of a resource, and change nothing."""

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """Yield the resources held or waited for, of one (encoded) type or all."""

    def renewer(self) -> Renewer:
        """Return a new renewer; it opens its connection at the first use."""

    async def aclose(self) -> None:
        """Finish requests under way, and close what the store opened."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a store, and what it means for locks.

    ``rating``: "bad" should be changed, "note" should be known, "good" is as it should
    be.
    """

    name: str
    value: str
    meaning: str
    rating: Literal["good", "note", "bad"] = "good"


@runtime_checkable
class Diagnosable(Protocol):
    """A store that can examine its server."""

    def examine(self) -> AsyncIterator[Finding]:
        """Yield findings about version, settings and rights; changes nothing."""


@runtime_checkable
class ReportsConnections(Protocol):
    """A store that knows the state of its connections, for ``Locks.statistics``."""

    def connections(self) -> Mapping[str, str]:
        """Return the state of each connection (``"open"``, ``"lost"``, …) by name."""


@runtime_checkable
class Replicated(Protocol):
    """A store that waits for its replicas, if it is configured to."""

    @property
    def min_replicas(self) -> int:
        """How many replicas must have a grant before it is reported."""


class Backend(Protocol):
    """A store of the user's own making, or around a client of theirs.

    ``connect`` takes it in place of a URL. The user closes the client they opened.
    """

    def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings, /
    ) -> Awaitable[Store]:
        """Open the store, as an ``Opener`` does."""


class Opener(Protocol):
    """The one function of a backend."""

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
        slow imports does them in a plain function that returns a coroutine.

        Raises:
            ConfigurationError: An option or a part of the URL does not fit.
            BackendError: The store does not reply, or does not fit.
        """
