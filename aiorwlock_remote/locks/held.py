"""``Held``: the object through which users see and end a grant."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn, TypeVar, final

import anyio

from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import Mode, ModeName, holder_of
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import (
    ConfigurationError,
    LockTimeout,
    LossReason,
    NotOwner,
)
from aiorwlock_remote.locks import tickets
from aiorwlock_remote.locks.session import HeldState
from aiorwlock_remote.runtime import conversion
from aiorwlock_remote.runtime.lease import HELD, RELEASED

T = TypeVar("T")


class BaseHeld:
    """Base of the objects through which users see and end a grant.

    What differs between locks and row locks is in its subclasses.
    """

    __slots__ = ("__weakref__", "_lease", "_state")

    def __init__(self, state: HeldState) -> None:
        self._state = state
        self._lease = state.lease
        state.session.admit(state, self)

    @property
    def resource(self) -> str:
        """The held resource, ``type/id``; a ``/`` in the type stands as ``%2F``."""
        return self._lease.resource.label

    @property
    def holder(self) -> str:
        """The public name of this grant: 12 hex digits, safe to log."""
        return holder_of(self._lease.ticket)

    @property
    def acquired_at(self) -> datetime:
        """When the granted request was sent, by the wall clock of this host."""
        clock = self._state.session.loop.clock
        ago = clock.now() - self._lease.since
        return datetime.fromtimestamp(clock.wall() - ago, UTC)

    @property
    def expires_in(self) -> float | None:
        """Seconds until the grant is lost unless it is renewed; None: it never expires.

        Zero or less if it was released, given away or lost.
        """
        # Read before ``valid``, which may find that the lease has just run out.
        left = self._lease.left
        return left if self.valid else min(0.0, left or 0.0)

    @property
    def lost(self) -> LossReason | None:
        """Why the grant was lost; None if it is not lost."""
        self._lease.expired()
        return self._lease.reason

    @property
    def valid(self) -> bool:
        """Whether the grant is still held, so that ``check()`` would not raise."""
        return not self._lease.expired() and self._lease.state is HELD

    def check(self) -> None:
        """Raise an error unless the grant is still held; no I/O.

        Raises:
            LockLost: the lease may have run out, or the store reported the grant as
                gone.
            NotOwner: it was released, moved or given away.
        """
        self._state.check()

    async def guard(self, awaitable: Awaitable[T]) -> T:
        """Await ``awaitable`` and return its result; cancel it if the grant is lost.

        The grant is checked before and after. If ``awaitable`` moves the grant
        (``upgrade``), the new grant is checked. If the caller is cancelled,
        ``awaitable`` is cancelled and the grant stays.

        Raises:
            LockLost: the grant is lost; ``awaitable`` was cancelled or not started.
            NotOwner: the grant was released, moved or given away.
        """
        state = self._state
        try:
            state.check()
        except BaseException:
            # A coroutine that is never awaited warns of that.
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        # The caller's own cancellation passes through; only ours ends in the scope.
        with anyio.CancelScope() as scope:
            state.watch(scope)
            try:
                result = await awaitable
            finally:
                state = state.newest
                state.unwatch(scope)
            state.check()
            return result
        raise state.error()

    def _abandon(self) -> str:
        """Give the grant up, as this object was dropped; return what becomes of it."""
        self._state.abandon()
        never = self._lease.terms.lease is None
        until = "stays until" if never else "ends with its lease or when"
        return f"it {until} the Locks is closed"

    def __repr__(self) -> str:
        lease, name = self._lease, type(self).__name__
        state = lease.reason or lease.state.value
        if self._state.newest is not self._state:
            state = "moved"
        shown = f"{self.resource} {lease.mode.shown} fence={lease.fence}"
        return f"<{name} {shown} {state}>"

    def __bool__(self) -> bool:
        # So that ``if held := await lock.try_acquire()`` reads well.
        return True

    def __reduce__(self) -> NoReturn:
        # Dropping one copy would end the renewals of the other.
        name = type(self).__name__
        raise TypeError(
            f"a {name} can be neither copied nor pickled; detach() gives a Held to "
            "others"
        )

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        state = getattr(self, "_state", None)
        # Without ``_state`` the constructor has failed. In ``async with`` the owner is
        # the task, and the block may hold no reference to the ``Held`` at all.
        if state is None or state.owned_by_task or state.lease.state is RELEASED:
            return
        if state.session.forked:
            return
        # Before the warning: recording it would make this object live again.
        rest = self._abandon()
        if state.lease.state is HELD and not state.wrapped:
            what = f"{self!r} was dropped without release; {rest}"
            warn(what, ResourceWarning, source=self)


@final
class Held(BaseHeld):
    """A grant of a lock, valid until it is released, moved, given away or lost.

    ``async with lock`` and ``await lock.acquire()`` return one. The grant is renewed in
    the background until it ends; or, got by ``async with``, until the task that entered
    ends; or, got by ``await lock.acquire()``, until the program drops its last
    reference to the ``Held`` (which warns with ``ResourceWarning``). A grant that is no
    longer renewed ends with its lease, or when the ``Locks`` is closed.
    """

    __slots__ = ()

    @property
    def fence(self) -> int:
        """The fencing number: hand it to the protected resource with every access.

        A resource that refuses numbers smaller than the highest it has seen (on reads
        too) is safe from holders that were paused past their lease.
        """
        return self._lease.fence

    @property
    def mode(self) -> ModeName:
        """The mode of the grant: ``"read"``, ``"write"``, or ``"permit"``."""
        return self._lease.mode.shown

    @property
    def name(self) -> str:
        """The id of the resource, without its type; in a ``MutexSet``, the mutex."""
        return self._lease.resource.shown[1]

    async def extend(self, lease: float | None = None) -> None:
        """Renew the grant now; the remaining time is never shortened.

        If the caller is cancelled, the grant may have been renewed; the renewals in the
        background continue either way.

        Args:
            lease: seconds the grant lives from now; None: the lease it was acquired
                with.

        Raises:
            LockLost: the grant is gone.
            NotOwner: it was released, moved or given away.
            BackendError: the store failed; the grant lives as long as it did before.
        """
        state = self._state
        state.check()
        state.session.check()
        if lease is not None and lease != state.options.lease:
            state.require_no_set("lease but that of the set")
        options = (
            state.options if lease is None else state.options.but({"lease": lease})
        )
        outcome = await state.session.client.renew(self._lease, options.lease)
        if isinstance(outcome, NotHeld):
            state.check()
            # Held, but the store does not know the ticket: another task is moving it.
            raise NotOwner(resource=self.resource, action="extend")

    async def release(self) -> bool:
        """Release the grant. Return True if this call ended it, False if it had ended.

        The request is sent before anything is awaited, so that cancelling the caller
        does not stop it. If another task is moving the grant (``upgrade``), the new
        grant is released as well, and that task gets ``NotOwner``.

        Raises:
            LockLost: the grant had been lost (only with ``on_lost="raise"``).
            NotOwner: it was moved or given away.
            BackendError: the store failed. The release is repeated in the background,
                and the grant ends with its lease at the latest.
        """
        return await self._state.release()

    async def downgrade(self) -> Held:
        """Turn a writer's grant into a reader's without a gap; return the new ``Held``.

        No writer can come in between. This ``Held`` ends. If the caller is cancelled
        while the request is under way, the grant is given up.

        Raises:
            LockLost: the grant is gone.
            NotOwner: it was released, moved or given away.
            ConfigurationError: it is a reader's grant already.
        """
        client = self._state.session.client
        mover = partial(conversion.downgrade, client, self._lease)
        # The old grant ends in the same step as the new one begins.
        new = await self._state.move(Mode.READ, mover)
        assert new is not None, "a writer's downgrade is granted or lost"
        return self._moved(new)

    async def try_upgrade(self) -> Held | None:
        """Turn a reader's grant into a writer's if there is no other reader now.

        Return the new ``Held``, or None if there are other readers; then this one stays
        valid. Cancellation and errors are those of ``upgrade``.
        """
        return await self._upgrade(0)

    async def upgrade(self, timeout: float | None = None) -> Held:
        """Turn a reader's grant into a writer's once all other readers have left.

        Return the new ``Held``; this one ends. If the caller is cancelled while it
        waits for the other readers, this stays a reader; if it is cancelled while a
        request is under way, the grant is given up.

        Args:
            timeout: seconds; None: wait for ever. A request that is under way when the
                time is up is awaited.

        Raises:
            UpgradeConflict: another reader is waiting to upgrade; release and retry.
            LockTimeout: the others did not leave in time; this stays a reader.
            LockLost: the grant is gone.
            NotOwner: it was released, moved or given away, also during the wait.
            Closed: the ``Locks`` was closed.
            ConfigurationError: it is a writer's grant already.
        """
        upgraded = await self._upgrade(timeout)
        if upgraded is None:
            raise LockTimeout(
                resource=self.resource, mode="write", timeout=timeout or 0.0
            )
        return upgraded

    def detach(self) -> str:
        """Give the grant away; return an opaque ticket for ``locks.adopt`` anywhere.

        From now on the grant is not renewed: the ticket has to be adopted before the
        lease ends. Treat the ticket as a secret: the first to adopt it has the lock.

        Raises:
            LockLost: the grant is gone.
            NotOwner: it was released, moved or given away, or is being moved.
        """
        self.check()
        # The ticket may be another one by now, which only the reply to the request
        # under way will tell (test_a_ticket_is_not_given_away_during_a_conversion).
        if self._lease.moving:
            raise NotOwner(resource=self.resource, action="detach")
        self._state.require_no_set("passing on")
        self._state.detach()
        return tickets.write(self._lease, shared=self._state.shared)

    async def _upgrade(self, timeout: float | None) -> Held | None:
        check_seconds("timeout", timeout)
        client = self._state.session.client
        mover = partial(conversion.upgrade, client, self._lease, timeout=timeout)
        new = await self._state.move(Mode.WRITE, mover)
        return None if new is None else self._moved(new)

    def _moved(self, new: HeldState) -> Held:
        held = Held(new)
        new.keep_owner(self._state)
        return held


def state_of(held: BaseHeld) -> HeldState:
    """Return the internal ``HeldState`` of a ``Held``, for the recipes.

    Raise ``ConfigurationError`` if ``held`` is something else.
    """
    given: object = held
    if not isinstance(given, BaseHeld):
        raise ConfigurationError(what=f"{quoted(given)} is no Held")
    return held._state  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


def share_ticket(held: Held) -> str:
    """Return a ticket with which tasks of any process may hold this grant, too, by
    ``locks.adopt(ticket)``; ``held`` stays valid.
    """
    return tickets.write(state_of(held).lease, shared=True)
