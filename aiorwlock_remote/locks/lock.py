"""The locks themselves: a mutex, and the two sides of a readers-writer lock.

``lock.in_transaction(…)``: a grant that ends with a transaction of the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Unpack, final

import anyio

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode, ModeName, Policy
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import BackendError, NotOwner, Unsupported
from aiorwlock_remote.locks.acquisition import (
    Acquisition,
    HeldScope,
    SingleEntry,
    acquire_grant,
    try_acquire_grant,
)
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.info import LockInfo
from aiorwlock_remote.locks.option_args import OptionArgs
from aiorwlock_remote.locks.options import POLICIES, Options, rwlock_options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import SupportsTransactions
from aiorwlock_remote.runtime.lease import LeaseState
from aiorwlock_remote.runtime.request import AcquireRequest

TRANSACTION_LEASE = 5.0
"""Seconds after which a dead holder's lock is free; no live one's ends by it."""
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.002, 0.25
"""Seconds between two looks whether the transaction has ended."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.held")


@final
class InTransaction:
    """Made by ``Mutex.in_transaction``; entered once."""

    def __init__(
        self,
        session: Session,
        request: AcquireRequest,
        options: Options,
        transaction: object,
    ) -> None:
        """``options``: those of the request."""
        self._session = session
        self._request = request
        self._options = options
        self._transaction = transaction
        self._inside = SingleEntry(
            "in_transaction(…)",
            lambda: f"in_transaction(…) of {request.resource.label}",
        )
        self._grip: HeldState | None = None
        self._held: Held | None = None

    async def __aenter__(self) -> Held:
        with self._inside:
            return await self._join()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._grip is not None
        if not self._session.forked:
            self._session.outlasting[self._grip.lease] = self._over
            self._session.host.spawn(self._outlast)

    async def _join(self) -> Held:
        session, request = self._session, self._request
        session.check()
        store = session.drive.store
        if not isinstance(store, SupportsTransactions):
            raise Unsupported(
                what=f"{request.resource.label}: not in a transaction of this store",
                hint="postgresql:// and mariadb:// can",
            )
        with session.asked(request) as followers:
            await session.may_ask(request.resource)
            lease = await session.doors.acquire(request)
        options = self._options
        self._grip = HeldState(session, lease, options, followers, owned_by_task=False)
        self._held = Held(self._grip)
        try:
            await store.join(request.resource, lease.ticket, self._transaction)
        except BaseException:
            self._grip.give_back()
            raise
        return self._held

    async def _outlast(self) -> None:
        """Release it when the transaction has ended: before, it would be waited for."""
        grip, pause = self._grip, MIN_POLL_INTERVAL
        assert grip is not None
        try:
            while not await self._over():
                await anyio.sleep(pause)
                pause = min(MAX_POLL_INTERVAL, 2 * pause)
        except BackendError as exc:
            where = grip.lease.resource.label
            log_event(log, "release_failed", resource=where, error=str(exc))
            grip.give_back()
        finally:
            self._session.outlasting.pop(grip.lease, None)

    async def _over(self) -> bool:
        """Whether the transaction has ended, or the grant; then it is given back."""
        store, grip = self._session.drive.store, self._grip
        assert isinstance(store, SupportsTransactions)
        assert grip is not None
        held = grip.lease.state is LeaseState.HELD
        if held and await store.joined(self._request.resource, grip.lease.ticket):
            return False
        grip.give_back()
        return True


class _Lock:
    """What every lock can do. Made without I/O, cheap, may be shared between tasks."""

    _mode: Mode

    def __init__(self, session: Session, resource: Resource, options: Options) -> None:
        """Made by ``Locks``, not by users."""
        self._session = session
        self._resource = resource
        self._options = options
        self._request = self._ask(options)
        self._entered: dict[Any, list[HeldScope]] = {}

    @property
    def resource(self) -> str:
        """``type/id``."""
        return self._resource.label

    @property
    def key(self) -> str:
        """The encoded name; locks of one resource have the same."""
        return self._resource.key

    @property
    def mode(self) -> ModeName:
        """``"read"`` or ``"write"``."""
        return self._mode.shown

    def acquire(
        self,
        timeout: float | None = None,
        *,
        reason: str = "",
        **options: Unpack[OptionArgs],
    ) -> Acquisition:
        """Wait for the lock: ``await`` it, or use it in ``async with``.

        ``timeout``: seconds to wait; None for ever, 0 only tries. ``reason`` is shown
        to those who wait. Cancelling leaves nothing behind: no grant, no place.

        Raises (when awaited or entered):
            LockTimeout: not obtained in time; ``.holders`` says who had it.
            WouldDeadlock: this task holds the resource already.
            TooManyWaiters: the queue is as long as ``max_waiters``.
            AcquireUncertain: the store never said whether it granted.
            BackendError: the store failed.
            ConfigurationError: an option or a number that cannot be used.
            Closed: the ``Locks`` is closed, forked or of another loop.
        """
        check_seconds("timeout", timeout)
        options_, request = self._options, self._request
        if options:
            options_ = self._but(options)
            request = self._ask(options_)
        if timeout is not None or reason != "":
            request = request.once(timeout, reason)
        return Acquisition(self._session, request, options_)

    async def try_acquire(
        self, *, reason: str = "", **options: Unpack[OptionArgs]
    ) -> Held | None:
        """The lock if it is free and nobody waits for it; else None.

        Cancelled, it leaves nothing behind. Raises what ``acquire`` raises, but for
        ``LockTimeout``.
        """
        options_ = self._but(options)  # `timeout` is none of them
        request = self._ask(options_).once(0, reason)
        return await try_acquire_grant(
            self._session, request, options_, self._session.doors
        )

    async def locked(self) -> bool:
        """Whether anybody holds the resource, in any mode, at this moment.

        Raises:
            BackendError: the store failed.
        """
        return (await self.info()).locked

    async def info(self) -> LockInfo:
        """Who holds it and who waits, as it stands; changes nothing.

        Raises:
            BackendError: the store failed.
        """
        self._session.check()
        drive = self._session.drive
        look = partial(drive.store.look, self._resource)
        return self._session.shown(await drive.answer(look))

    async def __aenter__(self) -> Held:
        session, request, options = self._session, self._request, self._options
        source = session.doors
        body = HeldScope(
            await acquire_grant(session, request, options, source, owned_by_task=True)
        )
        task = session.host.current_task()
        self._entered.setdefault(task, []).append(body)
        return body.held

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = self._session.host.current_task()
        mine = self._entered.get(task)
        if not mine:
            raise NotOwner(resource=self.resource, action="leave")
        body = mine.pop()
        if not mine:
            del self._entered[task]
        await body.left(exc_type, exc, traceback)

    def _ask(self, options: Options) -> AcquireRequest:
        return AcquireRequest(
            self._resource,
            self._mode,
            self._policy(options),
            options.terms,
            slow_wait=options.slow_wait,
            max_waiters=options.max_waiters,
            lock_delay=options.lock_delay,
        )

    def _but(self, options: Mapping[str, object]) -> Options:
        return rwlock_options(self._options, options)

    def _policy(self, options: Options) -> Policy:
        return POLICIES[options.policy]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.resource!r}>"


class _Exclusive(_Lock):
    """One holder, whose ticket sits in the seat."""

    _mode = Mode.WRITE

    def in_transaction(
        self, transaction: object, timeout: float | None = None, *, reason: str = ""
    ) -> InTransaction:
        """Hold it until a transaction of the caller's ends; ``async with`` gives Held.

        On PostgreSQL and MariaDB: ``transaction`` is a connection of asyncpg (asyncmy)
        with a transaction begun, or an ``AsyncSession`` or ``AsyncConnection`` of
        SQLAlchemy over it, to the server with the locks. It waits in the queue as
        ``acquire`` does, and leaves nothing behind if it is cancelled there. From then
        on nobody else gets the lock before that transaction has been committed or
        rolled back, however long it takes, even if it cannot be renewed: the row with
        the ticket is locked in it. Leaving the ``async with`` does not wait for that;
        the lock is given back as soon as it has happened.

        The lock's ``lease`` and ``on_lost`` do not apply. If this process dies, the
        server rolls back, and the lock is free a few seconds later.

        Raises (when entered), besides what ``acquire`` raises:
            Unsupported: this store cannot do that.
            ConfigurationError: none has begun, or it is of another database, or one
            that sees only what was there before the lock (REPEATABLE READ).
        """
        check_seconds("timeout", timeout)
        options = self._options.but(
            {
                "lease": TRANSACTION_LEASE,
                "margin": None,
                "max_hold": None,
                "on_lost": "flag",
            }
        )
        request = self._ask(options).once(timeout, reason)
        return InTransaction(self._session, request, options, transaction)


@final
class Mutex(_Exclusive):
    """A mutex: one holder at a time, among all processes that use the store.

    It is the exclusive mode of the one lock a resource has: it also excludes the
    readers and the writer of ``rwlock`` of the same name, and programs that use the
    published mutex record.
    """

    def _but(self, options: Mapping[str, object]) -> Options:
        return self._options.but(options)

    def _policy(self, options: Options) -> Policy:
        return options.mutex_policy()


@final
class ReaderLock(_Lock):
    """The shared side: any number of readers, no writer."""

    _mode = Mode.READ


@final
class WriterLock(_Exclusive):
    """The exclusive side: one writer, no reader."""


AnyLock = Mutex | ReaderLock | WriterLock
"""What ``multi`` takes."""


def parts_of(lock: AnyLock) -> tuple[Session, AcquireRequest, Options]:
    """For ``multi``: whose lock it is, what it asks of the store, and its options."""
    return lock._session, lock._request, lock._options  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


@final
class RWLock:
    """A readers-writer lock; ``policy`` says who goes first when both wait.

    ``"fair"`` (phase-fair FIFO): after a writer all readers waiting at that moment,
    after the readers the oldest writer; nobody starves. ``"writer"`` and ``"reader"``
    starve the other side by design.
    """

    def __init__(self, session: Session, resource: Resource, options: Options) -> None:
        """Made by ``Locks.rwlock``, not by users."""
        self._resource = resource
        self._reader = ReaderLock(session, resource, options)
        self._writer = WriterLock(session, resource, options)

    @property
    def reader(self) -> ReaderLock:
        """The shared side."""
        return self._reader

    @property
    def writer(self) -> WriterLock:
        """The exclusive side."""
        return self._writer

    @property
    def reader_lock(self) -> ReaderLock:
        """The shared side, as aiorwlock spells it."""
        return self._reader

    @property
    def writer_lock(self) -> WriterLock:
        """The exclusive side, as aiorwlock spells it."""
        return self._writer

    async def locked(self) -> bool:
        """Whether anybody holds it; see ``Mutex.locked``."""
        return await self._reader.locked()

    async def info(self) -> LockInfo:
        """Who holds it and who waits; see ``Mutex.info``."""
        return await self._reader.info()

    def __repr__(self) -> str:
        return f"<RWLock {self._resource.label!r}>"
