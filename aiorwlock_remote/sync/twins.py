"""What the synchronous classes share: each has an async object, its *twin*, at work.

A lock or a factory makes its twin anew in a forked child process, in which the store is
opened once more. A grant belongs to the process that got it.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from random import random
from time import monotonic
from typing import Any, Generic, NoReturn, ParamSpec, Self, TypeVar, cast

import aiorwlock_remote as aio
from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    BackendUnavailable,
    Closed,
    LockError,
    LockLost,
    NotOwner,
)
from aiorwlock_remote.locks.acquisition import SingleEntry
from aiorwlock_remote.locks.connect import open_in
from aiorwlock_remote.locks.held import BaseHeld, state_of
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.moving import MovingHeld as AsyncMovingHeld
from aiorwlock_remote.recipes.moving import MovingLock as AsyncMovingLock
from aiorwlock_remote.recipes.moving import grants_of, not_movable
from aiorwlock_remote.recipes.moving import is_held as is_moving_held
from aiorwlock_remote.recipes.moving import leave as leave_moving
from aiorwlock_remote.recipes.occupancy import Occupied as AsyncOccupied
from aiorwlock_remote.recipes.occupancy import is_in_use
from aiorwlock_remote.recipes.occupancy import release_at_exit as leave_occupied
from aiorwlock_remote.recipes.occupancy import wrap as wrap_occupied
from aiorwlock_remote.recipes.outage import MAX_CONNECT_PAUSE, may_pass
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.runtime.lease import LeaseState
from aiorwlock_remote.sync.background import (
    Background,
    ThreadsEventLoop,
    background,
    enroll,
    keep,
    refuse_event_loop,
)
from aiorwlock_remote.sync.transactions import check_transactions, tell_of_changes

A = TypeVar("A")
B = TypeVar("B")
G = TypeVar("G", bound="SyncGrant[Any]")
H = TypeVar("H", bound=BaseHeld)
P = ParamSpec("P")
T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiorwlock_remote.held")
store_log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

_END = object()


class Calls(ABC):
    """Base of objects that call their twin in the background loop."""

    @property
    @abstractmethod
    def _loop(self) -> Background: ...

    def _run(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._loop.run(function, *args, **kwargs)

    def _call(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        # Of a plain function that may run in the loop only.
        return self._loop.run(_called, function, *args, **kwargs)

    def _get(
        self,
        kind: Callable[[Background, A], B],
        function: Callable[P, Awaitable[A]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> B:
        # A grant is wrapped in the loop, so that it is given back if this thread was
        # interrupted and never gets it.
        self._check_transactions()
        loop = self._loop
        got = loop.run(_wrapped, kind, loop, function, *args, **kwargs)
        _hand_out(got, self)
        return got

    def _try(
        self,
        kind: Callable[[Background, A], B],
        function: Callable[P, Awaitable[A | None]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> B | None:
        return self._get(partial(_if_any, kind), function, *args, **kwargs)

    def _check_transactions(self) -> None:  # noqa: B027 - a grant may be moved
        """Raise ``ConfigurationError`` if a transaction forbids to acquire a grant."""

    def _iterate(
        self,
        function: Callable[P, AsyncIterator[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[T]:
        loop = self._loop
        items = loop.run(_called, function, *args, **kwargs)
        try:
            while (item := loop.run(_next, items)) is not _END:
                yield cast("T", item)
        finally:
            loop.spawn(partial(_end, items))


async def _called(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


async def _wrapped(
    kind: Callable[[Background, A], B],
    loop: Background,
    function: Callable[P, Awaitable[A]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> B:
    return kind(loop, await function(*args, **kwargs))


def _if_any(
    kind: Callable[[Background, A], B], loop: Background, twin: A | None
) -> B | None:
    return None if twin is None else kind(loop, twin)


async def _next(items: AsyncIterator[object]) -> object:
    return await anext(items, _END)


async def _end(items: AsyncIterator[object]) -> None:
    aclose = getattr(items, "aclose", None)  # an AsyncGenerator has it
    if aclose is not None:
        await aclose()


# ------------------------------------------------------------------ factories and locks


@dataclass(frozen=True)
class Opened:
    """An open store in this process."""

    loop: Background
    locks: aio.Locks


# The garbage collector must not destroy an open ``Locks`` together with what has it: it
# calls destructors in any order, and that of ``Locks`` warns (test_garbage_is_closed).
_open: set[aio.Locks] = set()


async def open_locks(connecting: aio.Connecting) -> aio.Locks:
    """Open a ``Locks`` in the background loop, to be closed by ``close_locks``."""
    locks = await open_in(ThreadsEventLoop(SystemClock()), connecting)
    _open.add(locks)
    return locks


async def close_locks(locks: aio.Locks) -> None:
    """Close what ``open_locks`` has opened."""
    try:
        await locks.aclose()
    finally:
        _open.discard(locks)


class Opener:
    """A store that is opened once in each process that uses it; now, or if it is down
    when it is used next.

    ``reopens``: whether a forked child process opens the store anew; else it gets
    ``Closed``, because it would share the parent's client.
    """

    def __init__(self, connecting: aio.Connecting, *, reopens: bool) -> None:
        self._connecting = connecting
        self._reopens = reopens
        self._opened: Opened | None = None
        self._is_child = False
        self.closed: bool = False
        # Attempts to open in a row that failed, with what, and when the next is due.
        self._failures = 0
        self._outage: LockError | None = None
        self._retry_at = 0.0
        enroll(self)
        try:
            self.get()
        except LockError:
            # Else nothing whose settings connect would start during an outage: neither
            # a server nor ``manage.py`` (test_down_at_the_start).
            if not self.is_down:
                raise

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def is_down(self) -> bool:
        """Whether the store could not be reached yet."""
        return self._failures > 0

    def get(self) -> Opened:
        """Return the store of this process; open it if need be."""
        return self._opened or self._open()

    def close(self) -> None:
        """Close what is open in this process; in a child not what the parent opened."""
        refuse_event_loop()
        with self._lock():
            self.closed = True
            opened = self._opened
        if opened is not None:
            opened.loop.run(close_locks, opened.locks)

    async def aclose(self) -> None:
        self.closed = True
        if self._opened is not None:
            await close_locks(self._opened.locks)

    def forked(self) -> None:
        keep((self._opened, self._connecting))
        self._opened, self._is_child = None, True
        self._failures, self._outage, self._retry_at = 0, None, 0.0
        # A thread of the parent may have held it.
        self.__dict__.pop("_opening", None)

    def _open(self) -> Opened:
        refuse_event_loop()
        with self._lock():
            if self.closed:
                raise Closed
            if self._is_child and not self._reopens:
                raise Closed(reason="forked")
            if self._opened is None:
                self._try_to_open()
            assert self._opened is not None
            return self._opened

    def _try_to_open(self) -> None:
        if monotonic() < self._retry_at:
            raise BackendUnavailable(
                what=f"no connection to the store: {self._outage}", nothing_done=True
            ) from self._outage
        try:
            background().run(self._connect)
        except LockError as exc:
            if may_pass(exc):
                if not self._failures:
                    log_event(store_log, "store_down_at_start", error=str(exc))
                pause = back_off(self._failures, random(), longest=MAX_CONNECT_PAUSE)
                self._failures += 1
                self._outage, self._retry_at = exc, monotonic() + pause
            # Without the frames of the loop, which name no cause.
            raise exc.with_traceback(None) from exc.__cause__
        if self._failures:
            attempts = self._failures + 1
            log_event(store_log, "store_connected", logging.INFO, attempts=attempts)
        self._failures, self._outage = 0, None

    def _lock(self) -> threading.Lock:
        # Made when it is needed: if gevent came between, as in a worker that patches
        # after the fork, a thread that waits must not block the greenlet that opens.
        lock: threading.Lock = self.__dict__.setdefault("_opening", threading.Lock())
        return lock

    async def _connect(self) -> Opened:
        # Kept here and not in the thread, which may be interrupted.
        locks = await open_locks(self._connecting)
        self._opened = opened = Opened(background(), locks)
        return opened

    def __del__(self) -> None:
        opened = getattr(self, "_opened", None)
        if opened is not None and not self.closed:
            opened.loop.spawn(partial(close_locks, opened.locks))

    def __repr__(self) -> str:
        return "<Locks>" if self._opened is None else repr(self._opened.locks)


class Made(Calls, Generic[A]):
    """Base of what a ``Locks`` makes, and of ``Locks``: the twin is made anew in each
    process. ``make`` may run in any thread.
    """

    def __init__(self, opener: Opener, make: Callable[[Opened], A]) -> None:
        self._opener = opener
        self._make = make
        self._made: tuple[Opened, A] | None = None
        if opener.is_open:
            _ = self._twin  # raises if an argument is not valid

    @property
    def _loop(self) -> Background:
        return self._opener.get().loop

    @property
    def _twin(self) -> A:
        opened, made = self._opener.get(), self._made
        if made is None or made[0] is not opened:
            self._made = made = opened, self._make(opened)
        return made[1]

    def _check_transactions(self) -> None:
        check_transactions(self)

    def __repr__(self) -> str:
        return repr(self._opener) if self._made is None else repr(self._made[1])

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled")


class LocksTwin(Made[aio.Locks]):
    """Base of ``Locks``: opened by ``connect`` or later, closed by ``with`` or
    ``close``.
    """

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener, _locks_of)

    def close(self) -> None:
        """End every wait with ``Closed``, release every grant, close the connection.

        If another thread is inside the ``with`` of a lock, its ``check()`` raises
        ``Closed`` from now on, and so does the end of its block.

        A second call does nothing. When the process ends, ``close`` is called if the
        program has not called it. In a forked child process, only what that process has
        opened is closed.
        """
        self._opener.close()

    def __enter__(self) -> Self:
        self._opener.get()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_down(locks: LocksTwin) -> bool:
    """Return whether the store of ``locks`` could not be reached yet."""
    return locks._opener.is_down  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


def _locks_of(opened: Opened) -> aio.Locks:
    return opened.locks


class LockTwin(Made[A]):
    """Base of the locks that ``with`` acquires and releases."""

    def __init__(self, opener: Opener, make: Callable[[Opened], A]) -> None:
        # By thread: several threads may be inside of one lock (readers).
        self._entered = threading.local()
        super().__init__(opener, make)

    @cached_property
    def _excludes(self) -> bool:
        # A permit says how many may work at a time, not who sees what.
        return self.mode != "permit"

    @property
    @abstractmethod
    def resource(self) -> str: ...

    @property
    @abstractmethod
    def mode(self) -> aio.ModeName: ...

    def _check_transactions(self) -> None:
        if self._excludes:
            check_transactions(self)

    def _enter(self, held: G) -> G:
        stack: list[G] = self._entered.__dict__.setdefault("stack", [])
        try:
            stack.append(held)
        except BaseException:
            # Interrupted after the call of ``append``: `with` will not call `__exit__`.
            stack[:] = [one for one in stack if one is not held]
            raise
        return held

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        # First of all: an interrupt that comes later drops the grant, and so gives it
        # back (test_at_each_place).
        try:
            held: SyncGrant[Any] = self._entered.stack.pop()
        except (AttributeError, IndexError):
            raise NotOwner(resource=self.resource, action="leave") from None
        held.__exit__(*exc_info)


class MovingLockTwin(LockTwin[AsyncMovingLock]):
    """Base of ``MovingLock``: its twin is made when both stores are open."""

    def __init__(
        self, old: object, new: object, make: Callable[[object], AsyncMovingLock]
    ) -> None:
        openers: list[Opener] = []
        for lock in (old, new):
            if not isinstance(lock, LockTwin):
                raise not_movable(lock)
            openers.append(lock._opener)  # noqa: SLF001 - same file
        # Of a store that is down: it must not be needed before the lock is used.
        closed = (opener for opener in openers if not opener.is_open)
        super().__init__(next(closed, openers[0]), make)


# ------------------------------------------------------------------------------- grants


class SyncGrant(Calls, Generic[A]):
    """Base of grants: left by ``with``, and given back if the program drops them."""

    def __init__(self, loop: Background, twin: A) -> None:
        self._background = loop
        self._twin = twin
        self._inside = SingleEntry(type(self).__name__)
        self._handed_out = self._left = False
        # A ``Locks`` that is dropped is closed, and would end this grant
        # (test_a_grant_keeps_its_locks_open).
        self._lock: object = None
        # What this grant was moved into (``upgrade``): it lives as long as this one, so
        # that a body may ignore what ``upgrade`` returns.
        self._successor: object = None

    @staticmethod
    @abstractmethod
    async def _leave(twin: A, *, quietly: bool) -> None:
        """Release the grant as its body ends; see ``ReleasesBody``."""

    @staticmethod
    @abstractmethod
    def _is_held(twin: A) -> bool:
        """Return whether the grant has not ended; called by a destructor."""

    @abstractmethod
    def check(self) -> None: ...

    @property
    def _loop(self) -> Background:
        return self._background

    def _keep(self, successor: T) -> T:
        self._successor = successor
        return successor

    def __enter__(self) -> Self:
        with self._inside:
            try:
                self.check()
            except LockLost:
                # There will be no `__exit__`, and the store may still count it as held
                # (test_a_grant_lost_before_its_body_is_released).
                self._left = True
                self._loop.spawn(partial(self._leave, self._twin, quietly=True))
                raise
        return self

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        self._inside.left()
        if exc_info[0] is None:
            tell_of_changes(self)
            self._loop.run(self._leave, self._twin, quietly=False)
        else:
            # Without waiting: the error of the body may be an interrupt.
            self._loop.spawn(partial(self._leave, self._twin, quietly=True))
        self._left = True

    def __repr__(self) -> str:
        return repr(self._twin)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled")

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        twin = getattr(self, "_twin", None)
        # Without a twin the constructor has failed. In a forked child process the grant
        # is the parent's. A release may be under way.
        if twin is None or self._left or self._background.forked:
            return
        if not self._is_held(twin):
            return
        shown, leave = repr(twin), partial(self._leave, twin, quietly=True)
        if not self._handed_out:  # its thread was interrupted
            self._background.spawn(leave)
            return
        # Before the warning: recording it would make this object live again.
        self._background.spawn(partial(_give_back, shown, leave))
        warn(
            f"{shown} was dropped without release; it is given back",
            ResourceWarning,
            source=self,
        )


def _hand_out(got: object, source: Calls) -> None:
    # From now on drops are reported: the thread has what the loop made for it.
    if got is None:
        return
    several = isinstance(got, tuple)
    lock = source._lock if isinstance(source, SyncGrant) else source  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType] - same file
    for grant in cast("tuple[SyncGrant[Any], ...]", got if several else (got,)):
        grant._handed_out, grant._lock = True, lock  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


def borrow(held: G) -> G:
    """Return the grant as one that an async block has, and releases: dropping it gives
    nothing back.
    """
    held._left = True  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file
    return held


async def _give_back(shown: str, leave: Callable[[], Awaitable[None]]) -> None:
    # Here and not in the destructor, which may run while a handler is locked.
    log_event(log, "dropped", grant=shown)
    await leave()


class GrantTwin(SyncGrant[H]):
    """Base of ``BaseHeld`` and ``HeldTwin``: grants that have a ``HeldState``."""

    def __init__(self, loop: Background, twin: H) -> None:
        super().__init__(loop, twin)
        state_of(twin).wrapped = True

    def guard(self, function: Callable[[], T]) -> T:
        """Call ``function()`` and return its result, unless the grant was lost.

        The grant is checked before and after. **A loss does not stop the function**: it
        runs to its end, then ``LockLost`` is raised in place of its result. So divide
        long work into short functions. If ``function`` moves the grant (``upgrade``),
        the new grant is checked.

        Raises:
            LockLost: the grant is lost; ``function`` was not called, or has ended.
            NotOwner: the grant was released, moved or given away.
        """
        self.check()
        result = function()
        state_of(self._twin).newest.check()
        return result

    @staticmethod
    async def _leave(twin: H, *, quietly: bool) -> None:
        await state_of(twin).newest.leave(quietly=quietly)

    @staticmethod
    def _is_held(twin: H) -> bool:
        return state_of(twin).lease.state is LeaseState.HELD


class HeldTwin(GrantTwin[aio.Held]):
    """Base of ``Held``: the calls that are not derived."""

    def __init__(self, loop: Background, twin: aio.Held) -> None:
        super().__init__(loop, twin)
        if callable(state_of(twin).options.on_lost):
            _shown_as[twin] = weakref.ref(self)

    def check_before_commit(self) -> None:
        """Raise what the end of the ``with`` would raise now for a loss; no I/O."""
        state = state_of(self._twin).newest
        try:
            state.check()
        except NotOwner:
            pass  # released or given away in the body, which is fine
        except (LockLost, Closed):
            if state.options.on_lost == "raise":
                raise


class MovingHeldTwin(SyncGrant[AsyncMovingHeld]):
    """Base of ``MovingHeld``: the calls that are not derived."""

    def __init__(self, loop: Background, twin: AsyncMovingHeld) -> None:
        super().__init__(loop, twin)
        for grant in grants_of(twin):
            state_of(grant).wrapped = True
            _shown_as[grant] = weakref.ref(self)

    def guard(self, function: Callable[[], T]) -> T:
        """Call ``function()`` and return its result, unless a grant was lost.

        The grants are checked before and after. **A loss does not stop the function**:
        it runs to its end, then ``LockLost`` is raised in place of its result.

        Raises:
            LockLost: a grant is lost; ``function`` was not called, or has ended.
            NotOwner: the grants were released.
        """
        self.check()
        result = function()
        self.check()
        return result

    @staticmethod
    async def _leave(twin: AsyncMovingHeld, *, quietly: bool) -> None:
        await leave_moving(twin, quietly=quietly)

    @staticmethod
    def _is_held(twin: AsyncMovingHeld) -> bool:
        return is_moving_held(twin)


class OccupiedTwin(SyncGrant[AsyncOccupied]):
    """Base of ``Occupied``: the calls that are not derived."""

    def __init__(self, loop: Background, twin: AsyncOccupied) -> None:
        super().__init__(loop, twin)
        wrap_occupied(twin)

    @staticmethod
    async def _leave(twin: AsyncOccupied, *, quietly: bool) -> None:
        await leave_occupied(twin, quietly=quietly)

    @staticmethod
    def _is_held(twin: AsyncOccupied) -> bool:
        return is_in_use(twin)


class MultiTwin(tuple[G, ...]):  # noqa: SLOT001 - a tuple may have no slots
    """Base of ``Multi``: several grants, which ``with`` releases together."""

    _stack: ExitStack

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for held in self:
                stack.enter_context(held)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        self._stack.__exit__(*exc_info)


# --------------------------------------------------------------------------- arguments

# Only the loop's thread uses it: there grants are wrapped, and losses handled.
_shown_as: weakref.WeakKeyDictionary[aio.Held, weakref.ref[SyncGrant[Any]]]
_shown_as = weakref.WeakKeyDictionary()


def twin_of(given: Any) -> Any:  # noqa: ANN401 - what callers pass, typed or not
    """Return the twin of a lock or grant; anything else as it is, to be refused."""
    if not isinstance(given, Made | SyncGrant):
        return given
    return cast("Any", given)._twin  # noqa: SLF001 - same file


def async_on_lost(on_lost: Any) -> Any:  # noqa: ANN401 - likewise
    """Return a callback that calls ``on_lost`` with the synchronous ``Held``."""
    return partial(_tell, on_lost) if callable(on_lost) else on_lost


def _tell(on_lost: Callable[[Any], object], twin: aio.Held) -> None:
    shown = _shown_as.get(twin)
    held = None if shown is None else shown()
    if held is not None:
        on_lost(held)


def async_options(options: Mapping[str, Any]) -> aio.OptionArgs:
    """Return options for the twin: its ``on_lost`` gets a ``Held`` of its own kind."""
    if "on_lost" in options:
        options = {**options, "on_lost": async_on_lost(options["on_lost"])}
    return cast("aio.OptionArgs", options)
