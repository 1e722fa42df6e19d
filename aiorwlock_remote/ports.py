"""What the runtime asks of a store, and a store of the runtime: small Protocols.

A backend is one function, ``open(address, host, bell, settings)``, that gives a
``Store``. Backends know the core and this module, never each other.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any, Generic, Protocol, TypeVar

import anyio

from aiorwlock_remote.core.commands import Command, NotHeld, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import Pace
from aiorwlock_remote.core.record import Grant, Record, Seat
from aiorwlock_remote.core.url import Address

T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Pending(Generic[T]):
    """An answer on its way: awaitable on asyncio and trio, any number of times.

    Cancelling whoever awaits it takes nothing back; the request is carried out.
    Resolved only in the loop's own thread.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_value")

    def __init__(self) -> None:
        """An answer that has not come yet."""
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Pending[T]], None]] = []

    @property
    def error(self) -> BaseException | None:
        """What it failed with, if it is done and failed."""
        return self._error

    @property
    def done(self) -> bool:
        """Whether the answer has come."""
        return self._done

    def resolve(self, value: T) -> None:
        """The answer came."""
        self._value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        """It will not come, and why."""
        self._error = error
        self._finish()

    def result(self) -> T:
        """The answer; raises what it failed with."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolved with a T

    def then(self, callback: Callable[[Pending[T]], None]) -> None:
        """Call back when done, in order; at once if it is."""
        if self._done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def unawaited(self) -> None:
        """Nobody waits for it: a failure is written to the log."""
        self.then(_log_failure)

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._done:
            event = anyio.Event()
            self.then(lambda _: event.set())
            yield from event.wait().__await__()
        return self.result()

    def _finish(self) -> None:
        assert not self._done, "an answer comes once"
        self._done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def _log_failure(pending: Pending[T]) -> None:
    if pending.error is not None:
        log.warning("request_failed", extra={"error": str(pending.error)})


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


class Host(Protocol):
    """The event loop a ``Locks`` lives on."""

    @property
    def clock(self) -> Clock:
        """Local time."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread. A dead loop: dropped."""

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of the loop itself, beyond any caller's cancellation."""


Bell = Callable[[Resource, float], None]
"""``bell(resource, seconds)``: a lane there may get in after so many seconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``connect`` was told about the store. Seconds."""

    gate: str
    prefix: str = ""
    connect_timeout: float = 5.0
    fence_memory: float = 3600.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A resource as it stands; times are microseconds of the store's clock.

    ``wall``: the store's wall clock at ``now``, to show times to people.
    """

    resource: Resource
    record: Record
    seat: Seat | None
    now: int
    wall: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """A grant to renew. ``lease`` in microseconds."""

    resource: Resource
    ticket: str = field(repr=False)
    lease: int


class Renewer(Protocol):
    """Blocking renewals over a connection of its own, used in the keeper's thread."""

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
    def pace(self) -> Pace:
        """How it wants to be waited for."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Carry out one command in one atomic step.

        Returns at once. Commands for one resource are carried out in the order of the
        calls, so that a release sent after a cancelled acquire cannot overtake it.
        Fails with ``BackendError``; ``BackendUnavailable`` leaves it open whether the
        command was carried out.
        """

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands, changing nothing."""

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All resources that are held or waited for; of one (encoded) type or all."""

    def renewer(self) -> Renewer:
        """A new renewer; opens its connection at the first use."""

    async def aclose(self) -> None:
        """Finish what is under way and close what was opened."""


class Backend(Protocol):
    """A store of the user's own making, or around a client of theirs.

    What ``connect`` takes in place of a URL. Whoever opened the client closes it.
    """

    async def open(self, host: Host, bell: Bell, settings: Settings) -> Store:
        """As ``Opener``."""


class Opener(Protocol):
    """A backend's one function."""

    def __call__(
        self, address: Address, host: Host, bell: Bell, settings: Settings
    ) -> Awaitable[Store]:
        """Open the store; one cheap round trip.

        Raises:
            ConfigurationError: an option or a part of the URL cannot be used.
            BackendError: it does not answer, or is not fit for us.
        """
