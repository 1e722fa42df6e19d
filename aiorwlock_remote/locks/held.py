"""A grant in hand."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar, final

import anyio

from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import (
    ConfigurationError,
    LockLost,
    LossReason,
    NotOwner,
)
from aiorwlock_remote.locks import moves, passing
from aiorwlock_remote.locks.options import OnLost, Options
from aiorwlock_remote.runtime.drive import was_held
from aiorwlock_remote.runtime.lease import Lease, State

if TYPE_CHECKING:
    from aiorwlock_remote.locks.session import Session

T = TypeVar("T")

log = logging.getLogger("aiorwlock_remote.held")


@final
class Held:
    """A grant: the proof, valid until it is released, moved, given away or lost.

    Got from ``async with`` or ``await lock.acquire()``. It is renewed in the background
    until it ends, or until its owner is gone: the task that entered ``async with``
    ended, or nothing refers to a ``Held`` from ``await acquire()`` any more
    (``ResourceWarning``). Without the keeper's renewals it ends with its lease.
    """

    __slots__ = (
        "__weakref__",
        "_lease",
        "_options",
        "_scopes",
        "_session",
        "_wall",
        "owned_by_task",
        "successor",
    )

    def __init__(
        self, session: Session, lease: Lease, options: Options, *, owned_by_task: bool
    ) -> None:
        """Made by the locks, not by users."""
        self._session = session
        self._lease = lease
        self._options = options
        self._scopes: list[anyio.CancelScope] = []
        self._wall = session.host.clock.wall()
        self.owned_by_task = owned_by_task
        self.successor: Held | None = None

    @property
    def fence(self) -> int:
        """The phase number: hand it to the protected resource with every access.

        A resource that refuses numbers smaller than the highest it has seen (on reads
        too) is safe from holders that were paused past their lease.
        """
        return self._lease.fence

    @property
    def mode(self) -> str:
        """``"read"`` or ``"write"``."""
        return str(self._lease.mode)

    @property
    def resource(self) -> str:
        """``type/id``."""
        return self._lease.resource.label

    @property
    def holder(self) -> str:
        """The public name of this grant: 12 hex digits, safe to log."""
        return holder_of(self._lease.ticket)

    @property
    def acquired_at(self) -> datetime:
        """When it was granted, by this host's clock."""
        return datetime.fromtimestamp(self._wall, UTC)

    @property
    def expires_in(self) -> float | None:
        """Seconds it may be believed without a renewal; None: it never expires."""
        if self._lease.deadline is None:
            return None
        return self._lease.deadline - self._session.host.clock.now()

    @property
    def lost(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        self._lease.expired()
        return self._lease.reason

    @property
    def valid(self) -> bool:
        """Whether ``check()`` would pass."""
        return not self._lease.expired() and self._lease.state is State.HELD

    def check(self) -> None:
        """Make sure that it is still held; no I/O.

        Raises:
            LockLost: its lease may have run out, or it is known to be gone.
            NotOwner: released, moved or given away.
        """
        if self._lease.expired():
            raise self.loss()
        if self._lease.state is not State.HELD:
            raise NotOwner(resource=self.resource, action="use")

    async def guard(self, awaitable: Awaitable[T]) -> T:
        """Await something under the grant: checked before and after, cancelled on loss.

        Raises:
            LockLost: the grant was or got lost; ``awaitable`` was cancelled or not
                started.
            NotOwner: released, moved or given away.
        """
        try:
            self.check()
        except BaseException:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        with anyio.CancelScope() as scope:
            self.watch(scope)
            try:
                result = await awaitable
            finally:
                self.unwatch(scope)
            self.check()
            return result
        raise self.loss()

    async def extend(self, lease: float | None = None) -> None:
        """Renew now, for ``lease`` seconds (default: its own lease).

        Cancelling leaves it renewed or not; the keeper goes on either way.

        Raises:
            LockLost: it is gone.
            NotOwner: released, moved or given away.
            BackendError: the store failed; the grant lives as long as it did before.
        """
        self.check()
        self._session.check()
        if lease is None:
            seconds = self._lease.terms.lease
        else:
            seconds = self._options.but({"lease": lease}).lease
        await self._session.drive.renew(self._lease, seconds)
        if self._lease.state is State.LOST:
            raise self.loss()

    async def release(self) -> bool:
        """Give it back. True if it was held until now, False if released before.

        The request is sent before anything is awaited: cancelling does not stop it.

        Raises:
            LockLost: it had been lost (with ``on_lost="raise"``).
            NotOwner: moved or given away.
            BackendError: the store failed; the grant ends with its lease.
        """
        lease = self._lease
        if self.successor is not None or lease.state is State.DETACHED:
            raise NotOwner(resource=self.resource, action="release")
        if lease.state is State.RELEASED:
            return False
        self._session.check()
        if lease.expired():
            self._session.forget(self)
            # The store may hold it a moment longer than we believe it: let others in.
            self._session.drive.release(lease).unawaited()
            if self._options.on_lost == "raise":
                raise self.loss()
            return False
        if not lease.end(State.RELEASED):
            return False
        self._session.forget(self)
        gone = was_held(await self._session.drive.release(lease))
        if gone is not None:
            lease.reason = gone.reason
            if self._options.on_lost == "raise":
                raise self.loss()
        return gone is None

    def give_back(self) -> None:
        """Release without waiting for the answer; nothing if it has ended."""
        if self._lease.end(State.RELEASED):
            self._session.forget(self)
            self._session.drive.release(self._lease).unawaited()

    async def leave(self) -> None:
        """``release`` at the end of an ``async with``: given away is fine, too."""
        if self._lease.state in (State.HELD, State.LOST):
            await self.release()

    async def downgrade(self) -> Held:
        """Writer → reader without a gap, in a new phase; this ``Held`` ends.

        Cancelled while the request is under way, the grant is given up.

        Raises:
            LockLost: it is gone.
            NotOwner: released, moved or given away.
            ConfigurationError: it is a reader.
        """
        if self._lease.mode is not Mode.WRITE:
            raise ConfigurationError(what="only a writer can be downgraded")
        return await moves.downgrade(self._session, self)

    async def try_upgrade(self) -> Held | None:
        """Reader → writer if it is the only reader right now; else None."""
        return await self._upgrade(0)

    async def upgrade(self, timeout: float | None = None) -> Held:
        """Reader → writer once all other readers have left; this ``Held`` ends.

        ``timeout`` in seconds; None waits for ever. Cancelled while it waits, it stays
        a reader; cancelled while a request is under way, the grant is given up.

        Raises:
            UpgradeConflict: another reader is waiting to upgrade; release and retry.
            LockTimeout: the others did not leave in time; the reader stays.
            LockLost: it is gone.
            NotOwner: released, moved or given away.
            ConfigurationError: it is a writer.
        """
        upgraded = await self._upgrade(timeout)
        if upgraded is None:
            raise moves.timed_out(self, timeout)
        return upgraded

    def detach(self) -> str:
        """Give the grant away: an opaque ticket for ``locks.adopt`` anywhere.

        From now on nobody renews it until it is adopted; its lease runs. The ticket is
        a secret: whoever has it holds the lock.

        Raises:
            LockLost: it is gone.
            NotOwner: released, moved or given away before.
        """
        self.check()
        self._lease.end(State.DETACHED)
        self._session.forget(self)
        return passing.write(self._lease)

    def loss(self) -> LockLost:
        """The error that says how it was lost."""
        return LockLost(
            reason=self._lease.reason or "expired",
            resource=self.resource,
            mode=self.mode,
            fence=self.fence,
        )

    @property
    def newest(self) -> Held:
        """This grant, or what it was moved to."""
        held = self
        while held.successor is not None:
            held = held.successor
        return held

    @property
    def lease(self) -> Lease:
        """The grant as the runtime sees it."""
        return self._lease

    @property
    def options(self) -> Options:
        """The options it was acquired with."""
        return self._options

    @property
    def on_lost(self) -> OnLost:
        """What happens when it is lost."""
        return self._options.on_lost

    @property
    def scopes(self) -> list[anyio.CancelScope]:
        """What is cancelled when it is lost."""
        return self._scopes

    def watch(self, scope: anyio.CancelScope) -> None:
        """Cancel this scope when the grant is lost."""
        self._scopes.append(scope)
        if self._lease.state is State.LOST:
            scope.cancel()

    def unwatch(self, scope: anyio.CancelScope) -> None:
        """Not any more."""
        if scope in self._scopes:
            self._scopes.remove(scope)

    def told_lost(self) -> None:
        """The loop's part of a loss: cancel what is watched, tell the user."""
        self._session.forget(self)
        for scope in self._scopes:
            scope.cancel()
        log.warning(
            "lost",
            extra={"resource": self.resource, "fence": self.fence, "why": self.lost},
        )
        if callable(self.on_lost):
            try:
                self.on_lost(self)
            except Exception:
                log.exception("on_lost raised")

    def __repr__(self) -> str:
        state = self._lease.reason or self._lease.state.value
        return f"<Held {self.resource} {self.mode} fence={self.fence} {state}>"

    def __bool__(self) -> bool:
        """Always true, so that ``if held := await lock.try_acquire()`` reads well."""
        return True

    def __del__(self, warn: object = warnings.warn) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None and lease.state is State.HELD and callable(warn):
            warn(
                f"{self!r} was dropped without release; it ends with its lease",
                ResourceWarning,
                source=self,
            )

    async def _upgrade(self, timeout: float | None) -> Held | None:
        if self._lease.mode is not Mode.READ:
            raise ConfigurationError(what="only a reader can be upgraded")
        return await moves.upgrade(self._session, self, timeout)
