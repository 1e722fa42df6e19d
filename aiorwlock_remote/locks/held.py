"""A grant in hand.

A grant that others share while it is held: for ``rwlock run``.
"""

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
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.runtime import conversion
from aiorwlock_remote.runtime.lease import LeaseState

T = TypeVar("T")


@final
class Held:
    """A grant: the proof, valid until it is released, moved, given away or lost.

    Got from ``async with`` or ``await lock.acquire()``. It is renewed in the background
    until it ends, or until its owner is gone: the task that entered ``async with``
    ended, or nothing refers to a ``Held`` from ``await acquire()`` any more
    (``ResourceWarning``). Without the keeper's renewals it ends with its lease,
    or when the ``Locks`` is closed.
    """

    __slots__ = ("__weakref__", "_lease", "_state")

    def __init__(self, state: HeldState) -> None:
        """Begin to be renewed (made by the locks, not by users)."""
        self._state = state
        self._lease = state.lease
        state.shown_as(self)

    @property
    def fence(self) -> int:
        """The phase number: hand it to the protected resource with every access.

        A resource that refuses numbers smaller than the highest it has seen (on reads
        too) is safe from holders that were paused past their lease.
        """
        return self._lease.fence

    @property
    def mode(self) -> ModeName:
        """``"read"`` or ``"write"``."""
        return self._lease.mode.shown

    @property
    def resource(self) -> str:
        """``type/id``, with a slash in the type as ``%2F``; without the prefix."""
        return self._lease.resource.label

    @property
    def name(self) -> str:
        """The id alone, or the name of a mutex of a set."""
        return self._lease.resource.shown[1]

    @property
    def holder(self) -> str:
        """The public name of this grant: 12 hex digits, safe to log."""
        return holder_of(self._lease.ticket)

    @property
    def acquired_at(self) -> datetime:
        """When it was granted, by this host's clock."""
        clock = self._state.session.loop.clock
        ago = clock.now() - self._lease.since
        return datetime.fromtimestamp(clock.wall() - ago, UTC)

    @property
    def expires_in(self) -> float | None:
        """Seconds it may be believed without a renewal; None: it never expires.

        Not above zero once it was released, given away or lost.
        """
        left = self._lease.left
        return left if self.valid else min(0.0, left or 0.0)

    @property
    def lost(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        self._lease.expired()
        return self._lease.reason

    @property
    def valid(self) -> bool:
        """Whether ``check()`` would pass."""
        return not self._lease.expired() and self._lease.state is LeaseState.HELD

    def check(self) -> None:
        """Make sure that it is still held; no I/O.

        Raises:
            LockLost: its lease may have run out, or it is known to be gone.
            NotOwner: released, moved or given away.
        """
        self._state.check()

    async def guard(self, awaitable: Awaitable[T]) -> T:
        """Await something under the grant: checked before and after, cancelled on loss.

        If it moves the grant, what that was moved to is checked after. Cancelled, so is
        ``awaitable``; the grant stays.

        Raises:
            LockLost: the grant was or got lost; ``awaitable`` was cancelled or not
                started.
            NotOwner: released, moved or given away.
        """
        state = self._state
        try:
            state.check()
        except BaseException:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        with anyio.CancelScope() as scope:
            state.loss.watch(scope)
            try:
                result = await awaitable
            finally:
                state = state.newest
                state.loss.unwatch(scope)
            state.check()
            return result
        raise state.error()

    async def extend(self, lease: float | None = None) -> None:
        """Renew now, for ``lease`` seconds (default: its own lease); never shortens.

        Cancelling leaves it renewed or not; the keeper goes on either way.

        Raises:
            LockLost: it is gone.
            NotOwner: released, moved or given away.
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
            raise NotOwner(resource=self.resource, action="extend")  # it is being moved

    async def release(self) -> bool:
        """Give it back. True if it was held until now, False if released before.

        The request is sent before anything is awaited: cancelling does not stop it.
        While another task moves it, what that comes to is given back, too, and the
        other task is told ``NotOwner``.

        Raises:
            LockLost: it had been lost (with ``on_lost="raise"``).
            NotOwner: moved or given away.
            BackendError: the store failed; it is asked again, and the grant ends with
                its lease at the latest.
        """
        return await self._state.release()

    async def downgrade(self) -> Held:
        """Writer → reader without a gap, in a new phase; this ``Held`` ends.

        Cancelled while the request is under way, the grant is given up.

        Raises:
            LockLost: it is gone.
            NotOwner: released, moved or given away.
            ConfigurationError: it is a reader.
        """
        client = self._state.session.client
        mover = partial(conversion.downgrade, client, self._lease)
        new = await self._state.move(Mode.READ, mover)
        assert new is not None, "a writer's downgrade is granted or lost"
        return self._moved(new)

    async def try_upgrade(self) -> Held | None:
        """Reader → writer if it is the only reader right now; else None.

        Raises and behaves when cancelled as ``upgrade`` does.
        """
        return await self._upgrade(0)

    async def upgrade(self, timeout: float | None = None) -> Held:
        """Reader → writer once all other readers have left; this ``Held`` ends.

        ``timeout`` in seconds; None waits for ever. A request that is under way when
        the time is up is waited for. Cancelled while it waits, it stays a reader;
        cancelled while a request is under way, the grant is given up.

        Raises:
            UpgradeConflict: another reader is waiting to upgrade; release and retry.
            LockTimeout: the others did not leave in time; the reader stays.
            LockLost: it is gone.
            NotOwner: released, moved or given away, also while it waited.
            Closed: the ``Locks`` was closed.
            ConfigurationError: it is a writer.
        """
        upgraded = await self._upgrade(timeout)
        if upgraded is None:
            raise LockTimeout(
                resource=self.resource, mode="write", timeout=timeout or 0.0
            )
        return upgraded

    def detach(self) -> str:
        """Give the grant away: an opaque ticket for ``locks.adopt`` anywhere.

        From now on nobody renews it until it is adopted; its lease runs. The ticket is
        a secret: whoever adopts it first has the lock, alone.

        Raises:
            LockLost: it is gone.
            NotOwner: released, moved or given away before, or just being moved.
        """
        self.check()
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

    def __repr__(self) -> str:
        state = self._lease.reason or self._lease.state.value
        if self._state.newest is not self._state:
            state = "moved"
        return f"<Held {self.resource} {self.mode} fence={self.fence} {state}>"

    def __bool__(self) -> bool:
        """Always true, so that ``if held := await lock.try_acquire()`` reads well."""
        return True

    def __reduce__(self) -> NoReturn:
        """Refused: a copy that is dropped would end the care for what is held still."""
        raise TypeError(
            "a Held can be neither copied nor pickled; detach() gives it to others"
        )

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        state = getattr(self, "_state", None)
        if state is None or state.owned_by_task:
            return
        if state.session.forked:
            return
        state.abandon()  # first: whoever records the warning refers to it again
        if state.lease.state is LeaseState.HELD:
            never = state.lease.terms.lease is None
            until = "stays until" if never else "ends with its lease or when"
            warn(
                f"{self!r} was dropped without release; it {until} the Locks is closed",
                ResourceWarning,
                source=self,
            )


def state_of(held: Held) -> HeldState:
    """The state behind it, for the recipes.

    Raises:
        ConfigurationError: no ``Held``.
    """
    given: object = held
    if not isinstance(given, Held):
        raise ConfigurationError(what=f"{quoted(given)} is no Held")
    return held._state  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


def share_ticket(held: Held) -> str:
    """A ticket by which others may share the grant, while ``held`` keeps it."""
    return tickets.write(state_of(held).lease, shared=True)
