"""``Mutex``, ``Semaphore``, and ``RWLock`` with its sides, reader and writer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, final

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.names import Resource, ResourceId
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import Mode, ModeName
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendError, NotOwner, Unsupported
from aiorwlock_remote.locks.acquisition import Acquisition, SingleEntry
from aiorwlock_remote.locks.decorators import (
    CallName,
    check_async,
    hold_during_calls,
)
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.info import LockInfo
from aiorwlock_remote.locks.options import Options, PolicyName, rwlock_options
from aiorwlock_remote.locks.session import HeldState, Session, TaskRef
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.runtime.lease import AcquireRequest, LeaseState

P = ParamSpec("P")
T = TypeVar("T")

TRANSACTION_LEASE = 5.0
"""Lease in seconds of a lock ``in_transaction``: how soon the lock of a dead holder is
free. While the transaction runs, its row lock keeps the lock beyond the lease."""
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.002, 0.25
"""Seconds between two checks whether a transaction has ended: first, and at most."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.held")


OnLost = Literal["raise", "flag"] | Callable[[Held], object]
"""What happens when a grant is lost, see ``OptionArgs``."""


class OptionArgs(TypedDict, total=False):
    """The options that ``connect``, locks and ``acquire`` take. Times are in seconds.

    Attributes:
        lease: how long a grant lives unless it is renewed; 30 by default, at least 0.2;
            None: it never expires.
        policy: who goes first when readers and writers wait; see ``RWLock``.
        fair: False lets a mutex be acquired ahead of tasks that wait; not for a
            ``RWLock``.
        on_lost: ``"raise"`` cancels the body and raises ``LockLost``; ``"flag"`` only
            sets ``held.lost``; a callable is called with the ``Held`` in the event
            loop.
        max_stall: a grant is lost if the event loop hangs for longer than this.
        max_hold: a grant is lost if it is held for longer than this.
        margin: how long before the end of its lease a holder counts it as lost.
        slow_wait: log a wait of this length, with the holders and the queue position.
        max_waiters: ``TooManyWaiters`` is raised if the queue is as long as this.
        lock_delay: for how long no task gets the lock after a lease ran out unreleased.
    """

    lease: float | None
    policy: PolicyName
    fair: bool
    on_lost: OnLost
    max_stall: float | None
    max_hold: float | None
    margin: float | None
    slow_wait: float | None
    max_waiters: int | None
    lock_delay: float


class _Lock:
    _mode: Mode

    def __init__(self, session: Session, resource: Resource, options: Options) -> None:
        self._session = session
        self._resource = resource
        self._options = options
        self._request = self._ask(options)
        self._entered: dict[TaskRef, list[Held]] = {}

    @property
    def resource(self) -> str:
        """The resource as ``type/id``, without the prefix."""
        return self._resource.label

    @property
    def key(self) -> str:
        """The encoded name of the resource, the same for all locks of one resource."""
        return self._resource.key

    @property
    def mode(self) -> ModeName:
        """The mode of the lock: ``"read"``, ``"write"``, or ``"permit"``."""
        return self._mode.shown

    def acquire(
        self,
        timeout: float | None = None,
        *,
        reason: str = "",
        **options: Unpack[OptionArgs],
    ) -> Acquisition:
        """Return an attempt to get the lock: ``await`` it, or use it in ``async with``.

        If the caller is cancelled, no grant and no queue entry remain.

        Args:
            timeout: seconds to wait; None: for ever; 0: only try.
            reason: shown to tasks that wait for the lock.
            options: replace those of the lock; see ``OptionArgs``.

        Raises:
            LockTimeout: not obtained in time; ``.holders`` says who had it.
            WouldDeadlock: this task holds the resource already.
            TooManyWaiters: the queue is as long as ``max_waiters``.
            AcquireUncertain: it is not known whether the store has granted.
            BackendError: the store failed.
            ConfigurationError: an option or a number is not valid.
            Closed: the ``Locks`` is closed, forked or of another loop.
        """
        options_, request = self._options, self._request
        if options:
            options_ = self._but(options)
            request = self._ask(options_)
        # Else the request of the lock is used as it is: one copy less for each acquire.
        if timeout is not None or reason != "":
            check_seconds("timeout", timeout)
            request = request.once(timeout, reason)
        return Acquisition(self._session, request, options_)

    async def try_acquire(
        self, *, reason: str = "", **options: Unpack[OptionArgs]
    ) -> Held | None:
        """Return a ``Held`` if the lock is free and has no queue; else None.

        If the caller is cancelled, no grant remains. Raises what awaiting ``acquire()``
        raises, except ``LockTimeout``.
        """
        options_ = self._but(options)  # `timeout` is none of them
        request = self._ask(options_).once(0, reason)
        state = await self._session.try_acquire(request, options_)
        return None if state is None else Held(state)

    async def locked(self) -> bool:
        """Return whether the resource is held, in any mode. Raises ``BackendError``."""
        return (await self.info()).locked

    async def info(self) -> LockInfo:
        """Return who holds the resource and who waits. Raises ``BackendError``."""
        self._session.check()
        client = self._session.client
        look = partial(client.store.look, self._resource)
        return self._session.shown(await client.answer(look))

    def __call__(
        self, function: Callable[P, Awaitable[T]]
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate an async function: the lock is held during each call.

        Each call waits for the lock anew, as ``async with lock`` does. For a name made
        of the arguments, or a ``timeout``, see ``Locks.synchronized``.

        Raises:
            ConfigurationError: the function is not async.
        """

        def enter(*_: P.args, **__: P.kwargs) -> Acquisition:
            return self.acquire()

        return hold_during_calls(enter, function)

    async def __aenter__(self) -> Held:
        state = await self._session.acquire(
            self._request, self._options, owned_by_task=True
        )
        held = Held(state)
        state.enter()
        # By task: one lock may be entered by several tasks at the same time (readers).
        self._entered.setdefault(state.task, []).append(held)
        return held

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        task = self._session.task()
        mine = self._entered.get(task)
        if not mine:
            raise NotOwner(resource=self.resource, action="leave")
        held = mine.pop()
        if not mine:
            del self._entered[task]
        await held._state.exit(*exc_info)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a grant of this lock

    def _ask(self, options: Options) -> AcquireRequest:
        return AcquireRequest(
            self._resource,
            self._mode,
            options.admission,
            options.terms,
            slow_wait=options.slow_wait,
            max_waiters=options.max_waiters,
            lock_delay=options.lock_delay,
        )

    def _but(self, options: Mapping[str, object]) -> Options:
        return rwlock_options(self._options, options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.resource!r}>"


class _Exclusive(_Lock):
    _mode = Mode.WRITE

    def in_transaction(
        self, transaction: object, timeout: float | None = None, *, reason: str = ""
    ) -> InTransaction:
        """Return an ``async with`` block: a lock held until your transaction ends.

        Entering the block waits in the queue as ``acquire`` does, and gives a ``Held``.
        If the caller is cancelled during that wait, no grant and no queue entry remain.
        Once the block is entered, the lock stays until the transaction has been
        committed or rolled back, even if the lock cannot be renewed: its row is locked
        in the transaction. Leaving the block does not wait for the transaction; the
        lock is released as soon as that has ended.

        The lock's ``lease`` and ``on_lost`` do not apply. If this process dies, the
        server rolls back, and the lock is free a few seconds later.

        Args:
            transaction: on PostgreSQL and MariaDB, a connection of asyncpg (asyncmy)
                with a transaction begun, or an ``AsyncSession`` or ``AsyncConnection``
                of SQLAlchemy over it, to the server with the locks.
            timeout: seconds to wait; None: for ever; 0: only try.
            reason: shown to tasks that wait for the lock.

        Entering the block raises what ``acquire`` raises, and the following.

        Raises:
            Unsupported: this store cannot bind a lock to a transaction.
            ConfigurationError: no transaction has begun, or it is of another database,
                or it cannot see changes made before the lock came (REPEATABLE READ).
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

    A resource has one lock, and a mutex is its exclusive mode: it also excludes the
    readers and the writer of ``rwlock`` of the same name, and programs that use the
    published mutex record. Tasks may share one object.
    """

    def _but(self, options: Mapping[str, object]) -> Options:
        return self._options.but(options)


@final
class ReaderLock(_Lock):
    """The shared side of a lock: any number of readers, no writer."""

    _mode = Mode.READ


@final
class WriterLock(_Exclusive):
    """The exclusive side of a lock: one writer, no reader."""


@final
class Semaphore(_Lock):
    """A semaphore: up to ``limit`` holders at a time, among all processes.

    Permits are given out in the order of arrival. Each has a lease of its own, which is
    renewed while it is held: the permit of a process that dies is free when its lease
    ends. A task that holds a permit cannot take a second one. Tasks may share one
    object.

    Fences show in which order permits were given out. They cannot keep a late holder
    out, because holders do not exclude each other.
    """

    _mode = Mode.PERMIT

    def __init__(
        self, session: Session, resource: Resource, options: Options, limit: int
    ) -> None:
        self._limit = limit
        if not options.fair or options.policy != "fair":
            # Options of locks, which ``connect`` was given.
            options = options.but({"fair": True, "policy": "fair"})
        super().__init__(session, resource, options)

    @property
    def limit(self) -> int:
        """How many tasks may hold the semaphore at a time."""
        return self._limit

    async def locked(self) -> bool:
        """Return whether all permits are held. Raises ``BackendError``."""
        seen = await self.info()
        return seen.permits_held >= min(self._limit, seen.limit or self._limit)

    def _ask(self, options: Options) -> AcquireRequest:
        return replace(super()._ask(options), limit=self._limit)

    def _but(self, options: Mapping[str, object]) -> Options:
        return rwlock_options(self._options, options, "semaphore")

    def __repr__(self) -> str:
        return f"<Semaphore {self.resource!r} limit={self._limit}>"


@final
class Synchronized:
    """Decorator of async functions, made by ``Locks.synchronized``."""

    def __init__(
        self,
        lock_of: Callable[[ResourceId], AnyLock],
        template: str,
        timeout: float | None,
        reason: str,
    ) -> None:
        check_seconds("timeout", timeout)
        check_reason(reason)
        self._lock_of = lock_of
        self._template = template
        self._timeout = timeout
        self._reason = reason

    def __call__(
        self, function: Callable[P, Awaitable[T]]
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate an async function; it keeps its parameters and its result.

        Raises:
            ConfigurationError: the function is not async, or has no such parameter.
        """
        check_async(function)
        name = CallName(self._template, function)

        def enter(*args: P.args, **kwargs: P.kwargs) -> Acquisition:
            lock = self._lock_of(name.of(args, kwargs))
            return lock.acquire(self._timeout, reason=self._reason)

        return hold_during_calls(enter, function)


AnyLock = Mutex | ReaderLock | WriterLock
"""A lock that ``Locks.multi`` can acquire together with others."""


def parts_of(
    lock: AnyLock | Semaphore,
) -> tuple[Session, AcquireRequest, Options]:
    """Return the session, the request and the options of a lock, for the recipes."""
    return lock._session, lock._request, lock._options  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


@final
class RWLock:
    """A readers-writer lock; ``policy`` says who goes first when both sides wait.

    ``"fair"`` alternates: after a writer come all readers that wait when it leaves,
    after these readers the longest-waiting writer, so that neither side starves. With
    ``"writer"`` waiting writers always enter first, with ``"reader"`` readers do: the
    other side may starve.
    """

    def __init__(self, session: Session, resource: Resource, options: Options) -> None:
        if not options.fair:  # an option of mutexes, which ``connect`` was given
            options = options.but({"fair": True})
        self._resource = resource
        self._reader = ReaderLock(session, resource, options)
        self._writer = WriterLock(session, resource, options)

    @property
    def reader(self) -> ReaderLock:
        """The lock for readers, the shared side."""
        return self._reader

    @property
    def writer(self) -> WriterLock:
        """The lock for a writer, the exclusive side."""
        return self._writer

    @property
    def reader_lock(self) -> ReaderLock:
        """The same lock as ``reader``, under the name that aiorwlock uses."""
        return self._reader

    @property
    def writer_lock(self) -> WriterLock:
        """The same lock as ``writer``, under the name that aiorwlock uses."""
        return self._writer

    async def locked(self) -> bool:
        """Return whether the resource is held, in any mode. Raises ``BackendError``."""
        return await self._reader.locked()

    async def info(self) -> LockInfo:
        """Return who holds the resource and who waits. Raises ``BackendError``."""
        return await self._reader.info()

    def __repr__(self) -> str:
        return f"<RWLock {self._resource.label!r}>"


@final
class InTransaction:
    """A lock held until a transaction ends; ``async with`` it for a ``Held``."""

    def __init__(
        self,
        session: Session,
        request: AcquireRequest,
        options: Options,
        transaction: object,
    ) -> None:
        self._session = session
        self._request = request
        self._options = options
        self._transaction = transaction
        self._inside = SingleEntry(
            "in_transaction(…)",
            lambda: f"in_transaction(…) of {request.resource.label}",
        )
        self._state: HeldState | None = None
        self._held: Held | None = None

    async def __aenter__(self) -> Held:
        with self._inside:
            return await self._join()

    async def __aexit__(self, *_: object) -> None:
        assert self._state is not None
        # The grant stays: its transaction is usually committed after this block. The
        # task may ask for the lock again, which looks first whether that has happened.
        if not self._session.forked:
            self._session.outlasting[self._state.lease] = self._over
            self._session.loop.spawn(self._outlast)

    async def _join(self) -> Held:
        session, request = self._session, self._request
        session.check()
        store = session.client.store
        if Capability.TRANSACTIONS not in store.capabilities:
            raise Unsupported(
                what=f"{request.resource.label}: this store has no lock in_transaction",
                hint="postgresql://, mariadb:// and mysql:// have",
            )
        self._state = state = await session.acquire(
            request, self._options, owned_by_task=False
        )
        self._held = Held(state)
        try:
            ticket = state.lease.ticket
            await store.join(request.resource, ticket, self._transaction)
        except BaseException:
            # Not joined, or it is not known: the lock is not this transaction's.
            state.give_back()
            raise
        return self._held

    async def _outlast(self) -> None:
        # A release sent before the transaction has ended would wait for its row lock.
        state, pause = self._state, MIN_POLL_INTERVAL
        assert state is not None
        try:
            while not await self._over():
                await anyio.sleep(pause)
                pause = min(MAX_POLL_INTERVAL, 2 * pause)
        except BackendError as exc:
            where = state.lease.resource.label
            log_event(log, "release_failed", resource=where, error=str(exc))
            state.give_back()
        finally:
            self._session.outlasting.pop(state.lease, None)

    async def _over(self) -> bool:
        store, state = self._session.client.store, self._state
        assert state is not None
        held = state.lease.state is LeaseState.HELD
        if held and await store.joined(self._request.resource, state.lease.ticket):
            return False
        state.give_back()
        return True
