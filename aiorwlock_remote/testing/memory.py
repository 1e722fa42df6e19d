"""In-memory lock store for tests of programs that use locks, with fault injection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Unpack, final, get_args

from aiorwlock_remote import ConfigurationError, Locks, LossReason, OptionArgs, connect
from aiorwlock_remote.backends.memory import MemoryDatabase, MemoryStore
from aiorwlock_remote.core.commands import ForceRelease
from aiorwlock_remote.core.names import ResourceId, resource
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.timing import PollPolicy, check_seconds
from aiorwlock_remote.locks.session import sessions_of
from aiorwlock_remote.ports import (
    Backend,
    Clock,
    EventLoop,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.testing.faults import FaultyLink, FaultyStore

LOOP_TIMEOUT = 10.0
"""Seconds to wait for the event loop of the synchronous API."""


@final
class FaultyMemory:
    """In-memory lock store with faults: lost grants, a faster clock, failing requests.

    ``connect`` of both APIs takes this object in place of a URL, and ``rival`` as in
    another process. Faults of its ``link`` affect every ``Locks`` except those of
    ``rival``. All see the same locks and the same clock. Use the store in one event
    loop at a time: that of a test, or by the synchronous API.
    ``poll_policy``: how often waiters poll, for tests of waiting; None: the memory
    store's default.
    """

    def __init__(self, *, poll_policy: PollPolicy | None = None) -> None:
        self.link: FaultyLink = FaultyLink()
        self._poll_policy = poll_policy
        self._database = MemoryDatabase()
        self._clock = _Ahead()
        self._stores: list[FaultyStore] = []
        self.rival: Backend = _Rival(self)
        """The same store for ``connect``, as in another process. No fault hits its
        requests."""

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        """Open the store, or raise ``BackendUnavailable`` if the link is down."""
        self.link.check()
        return self._open(loop, wake, settings, self.link)

    @asynccontextmanager
    async def connect(self, **options: Unpack[OptionArgs]) -> AsyncIterator[Locks]:
        """Open a ``Locks`` of this store; options as for ``aiorwlock_remote.connect``.

        Raises:
            BackendUnavailable: The link is down.
            ConfigurationError: An option is not valid.
        """
        async with connect(self, **options) as locks:
            yield locks

    @asynccontextmanager
    async def connect_rival(
        self, **options: Unpack[OptionArgs]
    ) -> AsyncIterator[Locks]:
        """Open a ``Locks`` of ``rival``."""
        async with connect(self.rival, **options) as locks:
            yield locks

    def lose(
        self,
        resource_type: str,
        resource_id: ResourceId,
        reason: LossReason = "expired",
    ) -> None:
        """End the grants of this resource now: their holders get ``LockLost(reason)``.

        A body of ``async with`` is cancelled at its next ``await`` that waits. Other
        clients can acquire the lock at once. Call this method in the event loop of the
        holders, or in a thread of the synchronous API; best in code that holds the
        lock: ``locked()`` becomes true some turns of the loop before the holder's
        acquire returns.

        Raises:
            LookupError: No ``Locks`` of this store holds the lock, or its acquire has
                not returned yet.
            ConfigurationError: The name or the reason does not exist.
        """
        if reason not in get_args(LossReason):
            known = f"known: {', '.join(get_args(LossReason))}"
            what = f"loss reason {reason!r} does not exist"
            raise ConfigurationError(what=what, hint=known)
        self._in_loop(lambda: self._lose(resource_type, resource_id, reason))

    def _lose(
        self, resource_type: str, resource_id: ResourceId, reason: LossReason
    ) -> None:
        leases = [
            lease
            for session in sessions_of(self._stores)
            for lease in session.leases()
            if lease.resource == session.resource(resource_type, resource_id)
        ]
        if not leases:
            raise LookupError(
                f"{resource(resource_type, resource_id).label} is not held by any "
                "Locks of this store, or its acquire has not returned yet"
            )
        # First in the store, then at the holder: a holder that learns of its loss finds
        # the lock free or another's, as it would with any store.
        for lease in leases:
            self._break(lease)
            lease.lose(reason)

    def advance(self, seconds: float) -> None:
        """Move the store's clock forward: leases end in the store, and waiters enter.

        As if every holder had been paused for so long: each relies on its lease until
        its next request, and only its fence shows that its grant is stale.

        Raises:
            ConfigurationError: ``seconds`` is not a number of seconds.
        """
        check_seconds("seconds", seconds)
        self._clock.seconds += seconds
        self._in_loop(self._wake_waiters)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Cut off the requests of all but ``connect_rival`` while the block runs.

        Requests fail with ``BackendUnavailable``, acquires with ``AcquireUncertain``.
        Waiters keep waiting, and leases keep running out. A ``Locks`` from
        ``connect_rival`` still reaches the store, as in a network split.
        """
        before, self.link.down = self.link.down, True
        try:
            yield
        finally:
            self.link.down = before
            self._in_loop(self._wake_waiters)

    def _open(
        self,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        link: FaultyLink,
    ) -> FaultyStore:
        there = _LoopAhead(loop, self._clock)
        inner = MemoryStore(self._database, there, link.hearing(wake), settings)
        store = FaultyStore(inner, link, loop, wake, self._poll_policy)
        self._stores.append(store)
        return store

    def _in_loop(self, change: Callable[[], object]) -> None:
        # In the loop of the synchronous API, if that has the locks: a thread of a test
        # must not change a store in the middle of another one's step.
        loops = (session.loop for session in sessions_of(self._stores))
        elsewhere = next((loop for loop in loops if not loop.here()), None)
        if elsewhere is None:
            change()
            return
        done: Future[object] = Future()

        def run() -> None:
            try:
                done.set_result(change())
            except Exception as exc:  # noqa: BLE001 - raised in the caller
                done.set_exception(exc)

        elsewhere.call_soon(run)
        done.result(LOOP_TIMEOUT)

    def _break(self, lease: Lease) -> None:
        command = ForceRelease(holder_of(lease.ticket), lease.fence)
        self._database.step(lease.resource, command, self._clock)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        for store in self._stores:
            store.wake_all()


@final
class _Rival:
    def __init__(self, memory: FaultyMemory) -> None:
        self._memory = memory

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        return self._memory._open(loop, wake, settings, FaultyLink())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


@final
class _Ahead:
    def __init__(self) -> None:
        self.seconds: float = 0.0
        self._clock = SystemClock()

    def now(self) -> float:
        return self._clock.now() + self.seconds

    def wall(self) -> float:
        return self._clock.wall() + self.seconds


@final
class _LoopAhead:
    def __init__(self, loop: EventLoop, clock: Clock) -> None:
        self.clock: Clock = clock
        self._loop = loop

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(function, *args)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        self._loop.spawn(function)
