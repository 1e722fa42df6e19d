"""A grant in hand."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Awaitable
from typing import TypeVar, final

import anyio

from aiorwlock_remote.core.lease import check_seconds
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.errors import (
    ConfigurationError,
    LockTimeout,
    NotOwner,
)
from aiorwlock_remote.locks import passing
from aiorwlock_remote.locks.loss import LossWatch
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.locks.view import GrantView
from aiorwlock_remote.runtime import moves
from aiorwlock_remote.runtime.drive import was_held
from aiorwlock_remote.runtime.lease import Lease, State
from aiorwlock_remote.runtime.request import Request

T = TypeVar("T")

log = logging.getLogger("aiorwlock_remote.held")


@final
class Held(GrantView):
    """A grant: the proof, valid until it is released, moved, given away or lost.

    Got from ``async with`` or ``await lock.acquire()``. It is renewed in the background
    until it ends, or until its owner is gone: the task that entered ``async with``
    ended, or nothing refers to a ``Held`` from ``await acquire()`` any more
    (``ResourceWarning``). Without the keeper's renewals it ends with its lease.
    """

    __slots__ = (
        "__weakref__",
        "_loss",
        "_options",
        "_owned_by_task",
        "_session",
        "_successor",
    )

    def __init__(
        self, session: Session, lease: Lease, options: Options, *, owned_by_task: bool
    ) -> None:
        """Made by the locks, not by users."""
        super().__init__(lease, session.host.clock)
        self._session = session
        self._options = options
        self._loss = LossWatch()
        self._owned_by_task = owned_by_task
        self._successor: Held | None = None
        session.admit(self, lease, owned_by_task=owned_by_task)

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
        """Renew now, for ``lease`` seconds (default: its own lease); never shortens.

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
        if self._successor is not None or lease.state is State.DETACHED:
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
        request = self._move_to(Mode.READ)
        try:
            lease = await moves.downgrade(self._session.drive, self._lease, request)
        finally:
            self._forget_if_ended()
        if lease is None:
            raise self.loss()
        return self._moved(lease)

    async def try_upgrade(self) -> Held | None:
        """Reader → writer if it is the only reader right now; else None.

        Raises and behaves when cancelled as ``upgrade`` does.
        """
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
            raise LockTimeout(
                resource=self.resource, mode="write", timeout=timeout or 0.0
            )
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

    @property
    def newest(self) -> Held:
        """This grant, or what it was moved to."""
        held = self
        while held._successor is not None:
            held = held._successor
        return held

    def watch(self, scope: anyio.CancelScope) -> None:
        """Cancel this scope when the grant is lost."""
        self._loss.watch(scope)

    def unwatch(self, scope: anyio.CancelScope) -> None:
        """Not any more."""
        self._loss.unwatch(scope)

    def told_lost(self) -> None:
        """The loop's part of a loss: cancel what is watched, tell the user."""
        self._session.forget(self)
        log.warning(
            "lost",
            extra={"resource": self.resource, "fence": self.fence, "why": self.lost},
        )
        self._loss.happened()
        on_lost = self._options.on_lost
        if callable(on_lost):
            try:
                on_lost(self)
            except Exception:
                log.exception("on_lost raised")

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
        check_seconds("timeout", timeout)
        request = self._move_to(Mode.WRITE)
        drive = self._session.drive
        try:
            lease = await moves.upgrade(drive, self._lease, request, timeout)
        finally:
            self._forget_if_ended()
        if lease is None and self._lease.expired():
            raise self.loss()
        return None if lease is None else self._moved(lease)

    def _move_to(self, mode: Mode) -> Request:
        self._session.check()
        self.check()
        if self._lease.mode is mode:
            raise ConfigurationError(what=f"{self.resource} is held for {mode} already")
        return Request(
            resource=self._lease.resource,
            mode=mode,
            policy=Policy.FAIR,
            terms=self._options.terms,
            lock_delay=self._options.lock_delay,
        )

    def _moved(self, lease: Lease) -> Held:
        new = Held(
            self._session, lease, self._options, owned_by_task=self._owned_by_task
        )
        if self._owned_by_task:  # it stays with the task that entered
            old = self._lease
            lease.owner, lease.owner_gone = old.owner, old.owner_gone
        self._successor = new
        self._loss.pass_on(new._loss)
        return new

    def _forget_if_ended(self) -> None:
        if self._lease.state is not State.HELD:
            self._session.forget(self)
