"""A memory store for tests of programs that use locks: time and faults on demand."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Unpack, final, get_args

from aiorwlock_remote import ConfigurationError, Locks, LossReason, OptionArgs, connect
from aiorwlock_remote.backends.memory import MemoryDatabase, MemoryStore
from aiorwlock_remote.core.commands import ForceRelease
from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.timing import PollPolicy, check_seconds
from aiorwlock_remote.locks.client import session_of
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports import Clock, EventLoop, StoreSettings, WakeCallback
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.testing.faults import FaultyLink, FaultyStore


@final
class FaultyMemory:
    """Locks in memory that nobody else has, lost and out of reach when a test says so.

    A backend: ``connect(store)`` takes it in place of a URL. What is told to its
    ``link`` happens to all who came through ``connect``; ``connect_rival`` is another
    way in, which does not fail. Both see the same locks, by the same clock. For one
    event loop at a time.
    """

    def __init__(self, *, pace: PollPolicy | None = None) -> None:
        """``pace``: how long waiters wait between looks; for tests of waiting."""
        self.link: FaultyLink = FaultyLink()
        self._pace = pace
        self._shelf = MemoryDatabase()
        self._clock = _Ahead()
        self._stores: list[FaultyStore] = []
        self._sessions: list[Session] = []

    async def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        """For ``connect``.

        Raises:
            BackendUnavailable: the link is down.
        """
        self.link.check()
        return self._open(host, bell, settings, self.link)

    @asynccontextmanager
    async def connect(self, **options: Unpack[OptionArgs]) -> AsyncIterator[Locks]:
        """Locks of this store; ``options`` as for ``aiorwlock_remote.connect``.

        Raises:
            BackendUnavailable: the link is down.
            ConfigurationError: an option that cannot be used.
        """
        async with connect(self, **options) as locks:
            with self._known(locks):
                yield locks

    @asynccontextmanager
    async def connect_rival(
        self, **options: Unpack[OptionArgs]
    ) -> AsyncIterator[Locks]:
        """Locks of the same store as another process has them; they never fail."""
        async with connect(_Rival(self), **options) as locks:
            with self._known(locks):
                yield locks

    def lose(
        self,
        resource_type: str,
        resource_id: ResourceId,
        reason: LossReason = "expired",
    ) -> None:
        """Whoever holds it loses it now, and is told: ``LockLost(reason)``.

        A body of ``async with`` is cancelled at its next ``await`` that waits. Others
        may have the lock at once. Of those who came through ``connect`` or
        ``connect_rival``; to be called in their event loop, best by what runs under the
        lock: ``locked()`` is true some turns of the loop before the holder is told.

        Raises:
            LookupError: none of them holds it, or its acquire has not returned yet.
            ConfigurationError: a name or reason that cannot be used.
        """
        if reason not in get_args(LossReason):
            known = f"known: {', '.join(get_args(LossReason))}"
            raise ConfigurationError(what=f"no such reason: {reason!r}", hint=known)
        leases = [
            lease
            for session in self._sessions
            for lease in session.leases()
            if lease.resource == resource(resource_type, resource_id, session.prefix)
        ]
        if not leases:
            raise LookupError(
                f"{resource(resource_type, resource_id).label} is held by nobody who "
                "could lose it: it must be one of these Locks, whose acquire has "
                "returned"
            )
        for lease in leases:
            self._break(lease)
            lease.lose(reason)

    def advance(self, seconds: float) -> None:
        """Let the store's clock go on: leases run out there, waiters get in.

        As if every holder had been paused for so long: each believes in its lease until
        it asks, and only its fence tells that it is late.

        Raises:
            ConfigurationError: not a number of seconds.
        """
        check_seconds("seconds", seconds)
        self._clock.seconds += seconds
        self._ring()

    @contextmanager
    def down(self) -> Iterator[None]:
        """While the block runs, nothing of ``connect``'s reaches the store.

        Requests fail with ``BackendUnavailable``, an ``acquire`` with
        ``AcquireUncertain``; who waits goes on waiting, leases run. The rival still
        gets through, as in a network that is split.
        """
        before, self.link.down = self.link.down, True
        try:
            yield
        finally:
            self.link.down = before
            self._ring()

    def _open(
        self,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        link: FaultyLink,
    ) -> FaultyStore:
        there = _HostAhead(host, self._clock)
        inner = MemoryStore(self._shelf, there, bell, settings)
        store = FaultyStore(inner, link, host, bell, self._pace)
        self._stores.append(store)
        return store

    @contextmanager
    def _known(self, locks: Locks) -> Iterator[None]:
        session = session_of(locks)
        self._sessions.append(session)
        try:
            yield
        finally:
            self._sessions.remove(session)

    def _break(self, lease: Lease) -> None:
        command = ForceRelease(holder_of(lease.ticket), lease.fence)
        self._shelf.step(lease.resource, command, self._clock)
        self._ring()

    def _ring(self) -> None:
        for store in self._stores:
            store.wake()


@final
class _Rival:
    """The way in that does not fail."""

    def __init__(self, memory: FaultyMemory) -> None:
        self._memory = memory

    async def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        return self._memory._open(host, bell, settings, FaultyLink())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


@final
class _Ahead:
    """This machine's clock, some seconds ahead."""

    def __init__(self) -> None:
        self.seconds: float = 0.0
        self._clock = SystemClock()

    def now(self) -> float:
        return self._clock.now() + self.seconds

    def wall(self) -> float:
        return self._clock.wall() + self.seconds


@final
class _HostAhead:
    """The host's loop, and the store's clock."""

    def __init__(self, host: EventLoop, clock: Clock) -> None:
        self.clock: Clock = clock
        self._host = host

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._host.call_soon(function, *args)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        self._host.spawn(function)
