"""What the runtime asks of a store, and a store of the runtime: small Protocols.

A backend is one function, ``open(address, host, bell, settings)``, that gives a
``Store``. The core and this module are all it needs to know; backends never know each
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
    """What a store can do; drives the docs' matrix and the conformance suite."""

    NONE = 0
    MANY_PROCESSES = auto()
    MANY_HOSTS = auto()
    NOTIFIES = auto()
    OFF_LOOP_RENEWAL = auto()
    PUBLISHED_LAYOUT = auto()


class Clock(Protocol):
    """Local time."""

    def now(self) -> float:
        """Seconds that go on while the host is suspended; the origin is arbitrary."""

    def wall(self) -> float:
        """Unix time in seconds."""


class EventLoop(Protocol):
    """The event loop a ``Locks`` lives on."""

    @property
    def clock(self) -> Clock:
        """Local time."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread. A dead loop: dropped."""

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of the loop itself, beyond any caller's cancellation."""


@runtime_checkable
class SocketEventLoop(Protocol):
    """A host that tells when a socket can be read."""

    def reads(
        self, sock: socket, function: Callable[[], object]
    ) -> Callable[[], object]:
        """Call it whenever ``sock`` can be read; what is returned ends that at once.

        Both in the loop's thread. What it raises is the loop's business.

        Raises:
            NotImplementedError: not this loop.
        """

    def at_end(self, function: Callable[[], object]) -> None:
        """Run it in the loop after this turn's tasks have run; from its thread only."""


MIN_CLOCK_SETBACK = 1_000_000
"""Microseconds by which a record may be newer than the store's clock."""

WakeCallback = Callable[[Resource, float], None]
"""``bell(resource, seconds)``: a lane there may get in after so many seconds."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What ``connect`` was told about the store. Seconds.

    ``gate``: a random name of this ``Locks``, by which places and messages are told
    apart. ``prefix``: the types of resources begin with it already; a store puts it
    before those keys alone that are made of users' names as they are (mutex sets, pairs
    of keys, occupied objects). ``fence_memory``: for so long after its last use a name
    is known.
    ``min_replicas``: a store that can (``Replicated``) tells of no grant that fewer
    replicas have.
    """

    client_id: str
    prefix: str = ""
    connect_timeout: float = 5.0
    fence_memory: float = 3600.0
    min_replicas: int = 0


@dataclass(frozen=True, slots=True)
class ForeignHolder:
    """A holder that another program wrote, by ``value``; nobody knows since when.

    ``expires``: microseconds of the store's clock; None: never.
    """

    value: str = field(repr=False)
    mode: Mode
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A resource as it stands; times are microseconds of the store's clock.

    ``wall``: the store's wall clock at ``now``, to show times to people. ``guests``:
    foreign holders, where there can be others than one in the seat.
    """

    resource: Resource
    record: Doorman
    seat: MutexRecord | None
    now: int
    wall: int
    guests: tuple[ForeignHolder, ...] = ()

    @property
    def set_back(self) -> int:
        """By how much the store's clock was set back since the record was changed.

        0 where no wall clock counts leases, and for less than ``MIN_CLOCK_SETBACK``:
        the nodes of a cluster may differ. A holder that is alive renews by the new
        time, and changes the record.
        """
        ahead = self.record.updated - self.now
        return ahead if self.wall == self.now and ahead >= MIN_CLOCK_SETBACK else 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """A grant to renew. ``lease`` in microseconds; None: it has no end."""

    resource: Resource
    ticket: str = field(repr=False)
    lease: int | None


class Renewer(Protocol):
    """Blocking renewals over a connection of its own; for one thread at a time."""

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all; outcomes in order, an exception where one of them failed.

        Gives up after ``timeout`` seconds.

        Raises:
            BackendError: it is not known which were renewed.
        """

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class ParallelRenewer(Protocol):
    """A renewer with several connections, which may be used at the same time.

    So that a server that does not answer delays only its own renewals.
    """

    def lane(self, resource: Resource) -> Hashable:
        """Those of one lane go one after the other; None: all are of the same."""


@runtime_checkable
class AbortableRenewer(Protocol):
    """A renewer that need not be waited for when the ``Locks`` is closed.

    Its server may be silent.
    """

    def give_up(self) -> None:
        """Let what is under way fail soon, and all after it; from any thread.

        May be called again, for what had just begun.
        """


@runtime_checkable
class FailsOver(Protocol):
    """A store whose server may be replaced while its connections stay."""

    def on_failover(self, renew_all: Callable[[], object]) -> bool:
        """Call ``renew_all()``, in any thread, when another server has taken over.

        It may not know what the one before it granted. False: that never happens.
        """


class Notifier(Protocol):
    """Waking: the store rings the bell for resources that are watched."""

    def watch(self, resource: Resource) -> None:
        """Ring for this resource from now on, and at once if it is free for us now.

        Called after the store gave this process a place there: what happened between
        that step and this call must not go unnoticed.
        """

    def unwatch(self, resource: Resource) -> None:
        """Nobody waits there any more."""


class Store(Notifier, Protocol):
    """Where the locks are."""

    @property
    def capabilities(self) -> Capability:
        """What it can do."""

    @property
    def pace(self) -> PollPolicy:
        """How it wants to be waited for."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Carry out one command in one atomic step.

        Returns at once. Commands for one resource are carried out in the order of the
        calls, so that a release sent after a cancelled acquire cannot overtake it.
        Fails with ``BackendError``, which leaves it open whether the command was
        carried out, unless it says ``nothing_done``: then a ``BackendUnavailable`` says
        that the same command may succeed soon.
        """

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands, changing nothing."""

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All resources that are held or waited for; of one (encoded) type or all."""

    def renewer(self) -> Renewer:
        """A new renewer; opens its connection at the first use."""

    async def aclose(self) -> None:
        """Finish what is under way and close what was opened."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a store, and what it means for locks.

    ``rating``: "bad" is to be changed, "note" to be known, "good" is as it should be.
    """

    name: str
    value: str
    meaning: str
    rating: Literal["good", "note", "bad"] = "good"


@runtime_checkable
class Diagnosable(Protocol):
    """A store that has more to say about itself than how fast it answers."""

    def examine(self) -> AsyncIterator[Finding]:
        """Look at its version, settings and rights; changes nothing."""


@runtime_checkable
class ReportsConnections(Protocol):
    """A store that knows the state of its connections, for ``Locks.statistics``."""

    def connections(self) -> Mapping[str, str]:
        """Return the state of each connection (``"open"``, ``"lost"``, …) by name."""


@runtime_checkable
class Replicated(Protocol):
    """A store that waits for its replicas, if it is told to."""

    @property
    def min_replicas(self) -> int:
        """How many replicas have a grant before anybody is told of it."""


class Backend(Protocol):
    """A store of the user's own making, or around a client of theirs.

    What ``connect`` takes in place of a URL. Whoever opened the client closes it.
    """

    def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Awaitable[Store]:
        """As ``Opener``."""


class Opener(Protocol):
    """A backend's one function."""

    def __call__(
        self,
        address: Address,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
    ) -> Awaitable[Store]:
        """Open the store: find out whether it answers and is fit for us.

        Only what is awaited counts towards ``connect_timeout``: whoever has much to
        import does so in a plain function that returns a coroutine.

        Raises:
            ConfigurationError: an option or a part of the URL cannot be used.
            BackendError: it does not answer, or is not fit for us.
        """
