"""``MovingLock``: a lock that is held in two stores while programs move to the new one.

Locks of two stores do not exclude each other, so programs that use only the old store
must not run beside programs that use only the new one. A program that holds the lock in
both stores may run beside either.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Literal, TypeVar, Unpack, final

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import ModeName
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import ConfigurationError, LossReason, NotOwner
from aiorwlock_remote.locks.acquisition import Acquisition, BaseAcquisition, one_timeout
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.lock import AnyLock, OptionArgs, Semaphore, parts_of
from aiorwlock_remote.locks.session import TaskRef
from aiorwlock_remote.runtime.lease import HELD

T = TypeVar("T")

FenceSource = Literal["old", "new"]
"""The store whose fence ``MovingHeld.fence`` is."""


@final
class MovingLock:
    """A lock of two stores: first the old store's is acquired, then the new store's.

    It excludes programs that use only the old store, and programs that use only the new
    one; these two do not exclude each other. All programs that use both must name them
    in the same order, or they may wait for each other. Creating the object does no I/O;
    tasks may share it.
    """

    def __init__(
        self,
        old: AnyLock | Semaphore,
        new: AnyLock | Semaphore,
        *,
        fence: FenceSource = "old",
    ) -> None:
        """Combine a lock of the old store with the same lock of the new store.

        Args:
            old: The lock of programs that do not use the new store yet.
            new: The lock of programs that do not use the old store any more.
            fence: The store whose fence is ``held.fence``. Fences of two stores cannot
                be compared: ``"old"`` while programs use only the old store, ``"new"``
                before programs use only the new one.

        Raises:
            ConfigurationError: the two are not locks of one mode and of two ``Locks``,
                or ``fence`` has another value.
        """
        for given in (old, new):
            lock: object = given
            if not isinstance(lock, AnyLock | Semaphore):
                raise not_movable(lock)
        if old.mode != new.mode or parts_of(old)[0] is parts_of(new)[0]:
            raise ConfigurationError(
                what=f"{quoted(old)} and {quoted(new)} are not one lock of two stores",
                hint="locks of the same kind, each made by the Locks of its store",
            )
        if fence not in ("old", "new"):
            raise ConfigurationError(
                what=f"fence={quoted(fence)}", hint="'old' or 'new'"
            )
        self._locks = old, new
        self._fence: FenceSource = fence
        self._entered: dict[TaskRef, list[MovingAcquisition]] = {}

    @property
    def resource(self) -> str:
        """The resource of the new store as ``type/id``, without the prefix."""
        return self._locks[1].resource

    @property
    def mode(self) -> ModeName:
        """The mode of the lock: ``"read"``, ``"write"``, or ``"permit"``."""
        return self._locks[1].mode

    def acquire(
        self,
        timeout: float | None = None,
        *,
        reason: str = "",
        **options: Unpack[OptionArgs],
    ) -> MovingAcquisition:
        """Return an attempt to get both: ``await`` it, or use it in ``async with``.

        The old store's lock is held while the new store's is waited for. If the caller
        is cancelled, no grant and no queue entry remain in either store.

        Args:
            timeout: seconds to wait for both together; None: for ever; 0: only try.
            reason: shown to tasks that wait for the lock.
            options: replace those of both locks; see ``OptionArgs``. A function
                ``on_lost`` is called with the ``Held`` of the store with the loss.

        Raises:
            LockTimeout: not obtained in time; ``.holders`` says who had the first of
                the two that was not free.
            LockLost: the old store's grant was lost during the wait for the new one's.
            WouldDeadlock: this task holds one of the two already.
            TooManyWaiters: a queue is as long as ``max_waiters``.
            AcquireUncertain: it is not known whether a store has granted.
            BackendError: a store failed.
            ConfigurationError: an option or a number is not valid.
            Closed: a ``Locks`` is closed, forked or of another loop.
        """
        check_seconds("timeout", timeout)
        return MovingAcquisition(self._locks, self._fence, timeout, reason, options)

    async def try_acquire(
        self, *, reason: str = "", **options: Unpack[OptionArgs]
    ) -> MovingHeld | None:
        """Return a ``MovingHeld`` if both locks are free and have no queue; else None.

        If the caller is cancelled, no grant remains in either store. Raises what
        awaiting ``acquire()`` raises, except ``LockTimeout``.
        """
        old, new = self._locks
        got = await old.try_acquire(reason=reason, **options)
        if got is None:
            return None
        rest = new.try_acquire(reason=reason, **options)
        return await _with_new(got, rest, self._fence)

    async def locked(self) -> bool:
        """Return whether a store has all it can give out. Raises ``BackendError``."""
        old, new = self._locks
        return await old.locked() or await new.locked()

    async def __aenter__(self) -> MovingHeld:
        acquisition = self.acquire()
        held = await acquisition.__aenter__()
        # By task: one lock may be entered by several tasks at the same time (readers).
        self._entered.setdefault(self._task(), []).append(acquisition)
        return held

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        task = self._task()
        mine = self._entered.get(task)
        if not mine:
            raise NotOwner(resource=self.resource, action="leave")
        acquisition = mine.pop()
        if not mine:
            del self._entered[task]
        await acquisition.__aexit__(*exc_info)

    def _task(self) -> TaskRef:
        return parts_of(self._locks[0])[0].task()

    def __repr__(self) -> str:
        return f"<MovingLock {self.resource!r} {self.mode}>"


@final
class MovingAcquisition(BaseAcquisition["MovingHeld"]):
    """One attempt to get a ``MovingLock``, made by its ``acquire()``; used once.

    ``await`` it for a ``MovingHeld``, whose grants live as long as the program refers
    to it; or enter it with ``async with``: then losing either grant cancels the body
    and raises ``LockLost``, and leaving releases both.
    """

    _what = "acquire()"

    def __init__(
        self,
        locks: tuple[AnyLock | Semaphore, AnyLock | Semaphore],
        fence: FenceSource,
        timeout: float | None,
        reason: str,
        options: OptionArgs,
    ) -> None:
        self._old, self._new = locks
        self._fence: FenceSource = fence
        self._timeout = timeout
        self._reason = reason
        self._options = options
        self._stack = AsyncExitStack()

    def _name(self) -> str:
        return f"acquire() of {self._new.resource}"

    async def _get(self) -> MovingHeld:
        with self._in_time() as acquire:
            old = await acquire(self._old)

            async def acquire_new() -> Held:
                return await acquire(self._new)

            held = await _with_new(old, acquire_new(), self._fence)
        assert held is not None, "acquire() grants or raises"
        return held

    async def _enter(self) -> MovingHeld:
        with self._in_time() as acquire:
            async with AsyncExitStack() as stack:
                old = await stack.enter_async_context(acquire(self._old))
                new = await stack.enter_async_context(acquire(self._new))
                self._stack = stack.pop_all()
        return MovingHeld(old, new, self._fence)

    async def _leave(
        self,
        held: MovingHeld,  # noqa: ARG002 - the stack has both grants
        *exc_info: *ExcInfo,
    ) -> None:
        await self._stack.__aexit__(*exc_info)

    @contextmanager
    def _in_time(
        self,
    ) -> Generator[Callable[[AnyLock | Semaphore], Acquisition], None, None]:
        clock = parts_of(self._old)[0].client.clock
        with one_timeout(clock, self._timeout) as left:
            yield lambda lock: lock.acquire(
                left(), reason=self._reason, **self._options
            )


async def _with_new(
    old: Held, attempt: Coroutine[object, object, Held | None], fence: FenceSource
) -> MovingHeld | None:
    """Await the new store's grant while ``old`` is held; if there is none, end ``old``.

    The releases are not awaited: a wait could be cancelled.
    """
    new: Held | None = None

    async def obtain() -> None:
        nonlocal new
        new = await attempt

    try:
        await old.guard(obtain())
    except BaseException:
        attempt.close()  # if it was not begun: else Python warns
        if new is not None:
            state_of(new).give_back()
        state_of(old).give_back()
        raise
    if new is None:
        state_of(old).give_back()
        return None
    return MovingHeld(old, new, fence)


@final
class MovingHeld:
    """The grants of both stores, valid until either is released or lost.

    It is renewed, and dropped, as a ``Held`` is. There is no ``upgrade``, ``downgrade``
    or ``detach``: release the lock, and acquire it in the other mode or process.
    """

    __slots__ = ("_fence", "_new", "_old")

    def __init__(self, old: Held, new: Held, fence: FenceSource) -> None:
        self._old = old
        self._new = new
        self._fence: FenceSource = fence

    @property
    def fence(self) -> int:
        """The fencing number for the protected resource, of the store that was chosen.

        See ``fence`` of ``MovingLock``.
        """
        return self.old_fence if self._fence == "old" else self.new_fence

    @property
    def old_fence(self) -> int:
        """The fence of the old store's grant."""
        return self._old.fence

    @property
    def new_fence(self) -> int:
        """The fence of the new store's grant."""
        return self._new.fence

    @property
    def resource(self) -> str:
        """The resource of the new store, ``type/id``."""
        return self._new.resource

    @property
    def mode(self) -> ModeName:
        """The mode of the grants: ``"read"``, ``"write"``, or ``"permit"``."""
        return self._new.mode

    @property
    def expires_in(self) -> float | None:
        """Seconds until one of the grants is lost unless it is renewed; None: never.

        Zero or less if one was released or lost.
        """
        left = self._old.expires_in, self._new.expires_in
        return min((seconds for seconds in left if seconds is not None), default=None)

    @property
    def lost(self) -> LossReason | None:
        """Why a grant was lost; None if none is lost."""
        return self._old.lost or self._new.lost

    @property
    def valid(self) -> bool:
        """Whether both grants are still held, so that ``check()`` would not raise."""
        return self._old.valid and self._new.valid

    def check(self) -> None:
        """Raise an error unless both grants are still held; no I/O.

        If one is lost, the other is released.

        Raises:
            LockLost: the lease of one may have run out, or its store reported the grant
                as gone.
            NotOwner: they were released.
        """
        grants = self._old, self._new
        for lost in [grant for grant in grants if grant.lost]:
            self._end_the_other()
            lost.check()
        for grant in grants:
            grant.check()

    async def guard(self, awaitable: Awaitable[T]) -> T:
        """Await ``awaitable`` and return its result; cancel it if a grant is lost.

        The grants are checked before and after. If the caller is cancelled,
        ``awaitable`` is cancelled and the grants stay.

        Raises:
            LockLost: a grant is lost; ``awaitable`` was cancelled or not started.
            NotOwner: the grants were released.
        """
        try:
            self.check()
        except BaseException:
            # A coroutine that is never awaited warns of that.
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        try:
            return await self._old.guard(self._new.guard(awaitable))
        finally:
            if self.lost:
                self._end_the_other()

    async def extend(self, lease: float | None = None) -> None:
        """Renew both grants now; the remaining time is never shortened.

        If the caller is cancelled, none, one or both may have been renewed; the
        renewals in the background continue either way.

        Args:
            lease: seconds the grants live from now; None: the lease they were acquired
                with.

        Raises:
            LockLost: a grant is gone.
            NotOwner: they were released.
            BackendError: a store failed; its grant lives as long as it did before.
        """
        self.check()
        try:
            await self._old.extend(lease)
            await self._new.extend(lease)
        finally:
            if self.lost:
                self._end_the_other()

    async def release(self) -> bool:
        """Release both grants. Return True if this call ended both, else False.

        If the caller is cancelled, both are released all the same.

        Raises:
            LockLost: a grant had been lost (only with ``on_lost="raise"``).
            BackendError: a store failed. The release is repeated in the background, and
                the grant ends with its lease at the latest.
        """
        try:
            ended = await self._new.release()
        except BaseException:
            state_of(self._old).give_back()
            raise
        return await self._old.release() and ended

    def _end_the_other(self) -> None:
        for grant in (self._old, self._new):
            if not grant.lost:
                state = state_of(grant)
                loop = state.session.loop
                if loop.here():
                    state.give_back()
                else:  # in a thread of the synchronous API
                    loop.call_soon(state.give_back)

    def __bool__(self) -> bool:
        # So that ``if held := await lock.try_acquire()`` reads well.
        return True

    def __repr__(self) -> str:
        return f"<MovingHeld {self._old!r} {self._new!r}>"


def not_movable(given: object) -> ConfigurationError:
    """Return the error for something that is not a lock."""
    return ConfigurationError(
        what=f"{quoted(given)} cannot be held in two stores",
        hint="mutex, reader and writer locks, semaphores",
    )


def is_held(held: MovingHeld) -> bool:
    """Return whether a grant has not ended."""
    return any(state_of(grant).lease.state is HELD for grant in grants_of(held))


async def leave(held: MovingHeld, *, quietly: bool) -> None:
    """Release both grants as their body ends; see ``ReleasesBody``."""
    old, new = map(state_of, grants_of(held))
    try:
        await new.leave(quietly=quietly)
    except BaseException:
        await old.leave(quietly=True)
        raise
    await old.leave(quietly=quietly)


def grants_of(held: MovingHeld) -> tuple[Held, Held]:
    """Return the grants of the old store and of the new one."""
    return held._old, held._new  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file
