"""The row locks of one ``Locks``.

``RowLock``: a readers-writer lock in the resource's own row (S2).

A row lock that was obtained, and the attempt to get one.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, final

import anyio

from aiorwlock_remote.core.row import RowKey, RowState, RowTable, Statement
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import (
    BackendUnavailable,
    Closed,
    LockError,
    LockLost,
    LossReason,
    NotOwner,
)
from aiorwlock_remote.locks.acquisition import SingleEntry
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import NotifiesRowReleases, SupportsRowLocks
from aiorwlock_remote.recipes.row_lock.lease import RowLease, reason_of_loss
from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.target import RowSql, RowTarget

log: logging.Logger = logging.getLogger("aiorwlock_remote.row_lock")


@final
class RowHeld:
    """A row lock that was obtained. It lives until it is released.

    One with a lease is renewed until its owner is gone: the task that entered ``async
    with`` ended, or nothing refers to a ``RowHeld`` that was awaited any more
    (``ResourceWarning``). Without a lease the row stays locked then.
    """

    def __init__(self, desk: RowLockManager[Any], holding: RowLease[Any]) -> None:
        """Made by ``RowLock``, not by users."""
        self._desk = desk
        self._holding = holding

    @property
    def mode(self) -> Mode:
        """``read`` or ``write``."""
        return self._holding.attempt.mode

    @property
    def reason(self) -> str:
        """What was stored beside it."""
        return self._holding.attempt.reason

    @property
    def fence(self) -> int | None:
        """Rises with each writer and each batch of readers; None without a lease."""
        grant = self._holding.grant
        return None if grant is None else grant.fence

    @property
    def expires_in(self) -> float | None:
        """Seconds for which it may be believed without renewal; None: for ever.

        Zero when it was released or lost.
        """
        if self._holding.over.is_set() or self.lost is not None:
            return 0.0
        left = self._holding.deadline - self._desk.now()
        return None if left == math.inf else max(0.0, left)

    @property
    def lost(self) -> LossReason | None:
        """Why it is not held any more, as far as is known here."""
        holding = self._holding
        if holding.lost is None and self._desk.now() >= holding.deadline:
            return "expired"
        return holding.lost

    def check(self) -> None:
        """Whether it may still be believed; no I/O.

        Raises:
            LockLost: its lease is over, or somebody broke it.
            NotOwner: it was released.
            Closed: the ``Locks`` was closed.
        """
        if self._holding.closed_under:
            raise Closed
        if self._holding.over.is_set():
            raise NotOwner(resource=self._holding.row.label, action="check")
        if self.lost is not None:
            raise _lock_lost(self._holding, self.lost)

    async def extend(self) -> None:
        """Renew its lease by hand; that is done in the background, too.

        Raises:
            LockLost: it was lost.
            NotOwner: it was released, or has no lease.
            BackendError: the store failed; it lives as long as it did before.
        """
        if self._holding.over.is_set() or self._holding.grant is None:
            raise NotOwner(resource=self._holding.row.label, action="extend")
        if not await self._desk.extend(self._holding):
            raise _lock_lost(self._holding, self._holding.lost or "expired")

    async def release(self, reason: str | None = None) -> None:
        """Give it back. The request is sent even if this is cancelled.

        ``reason``: stored in the row in place of the one it was taken with. If the row
        was deleted under a write lock, there is nothing left to give back. One that
        failed is asked again in the background until the database has answered or the
        lease is over; without a lease, only if it certainly was not carried out.

        Raises:
            LockLost: its lease was over, somebody else had unlocked it, or deleted a
                row we read.
            NotOwner: it was released before.
            BackendUnavailable: whether it was given back is not known.
            BackendError: the store failed; it is still locked.
        """
        holding = self._holding
        row, mode, lost = holding.row, holding.attempt.mode, self.lost
        if reason is not None:
            check_reason(reason)
        try:
            got = await self._desk.release(holding, reason)
        except BackendUnavailable as exc:
            if lost is not None:  # nothing that it could be told would change that
                raise _lock_lost(holding, lost) from exc
            if holding.grant is not None:
                raise
            if exc.nothing_done:
                rest = "not given back"
                hint = "asked again in the background; if this process ends before, "
            else:
                rest = "perhaps not given back"
                hint = "nobody uses it any more; when no other reader is left, "
            raise BackendUnavailable(
                what=f"{row.label} ({mode}) was {rest}: {exc.what}",
                hint=hint + row.hints.repair,
                nothing_done=exc.nothing_done,
            ) from exc.__cause__
        if got is None:
            raise NotOwner(resource=row.label, action="release")
        if lost is not None:  # though nobody else has come since
            raise _lock_lost(holding, lost)
        there = got.step.count or got.step.found is not None
        deleted = not there and mode is Mode.WRITE
        if not got.held and got.step.count < 2 and not deleted:
            raise _lock_lost(
                holding, holding.lost or reason_of_loss(holding, self._desk.now())
            )

    def __repr__(self) -> str:
        holding = self._holding
        return f"<RowHeld {holding.row.label!r} ({holding.attempt.mode})>"

    def __reduce__(self) -> NoReturn:
        """Refused: a copy that is dropped would end the care for what is held still."""
        raise TypeError("a RowHeld can be neither copied nor pickled")

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        holding = getattr(self, "_holding", None)
        if holding is None or holding.entered or self._desk.forked:
            return
        holding.dropped = True  # first: whoever records the warning refers to it again
        over = holding.over.is_set() or not holding.believed(self._desk.now())
        if not over:
            leased = holding.grant is not None
            rest = "it ends with its lease" if leased else "the row stays locked"
            warn(
                f"{self!r} was dropped without release; {rest}",
                ResourceWarning,
                source=self,
            )


@final
class RowAcquisition:
    """One attempt to get a row lock; used once.

    ``await`` it for a ``RowHeld``, to be kept and released by hand, or enter it with
    ``async with``. Cancelled, it leaves nothing locked: if a request is under way, what
    that obtains is given back.
    """

    def __init__(
        self,
        desk: RowLockManager[Any],
        row: RowTarget[Any],
        mode: Mode,
        reason: str,
        timeout: float | None,
    ) -> None:
        """Made by ``RowLock``, not by users."""
        self._desk = desk
        self._wanted = row, mode, reason, timeout
        self._inside = SingleEntry(f"{mode}()", lambda: f"{mode}() of {row.label}")
        self._entered: tuple[RowLease[Any], anyio.CancelScope] | None = None

    def __await__(self) -> Generator[Any, Any, RowHeld]:
        self._inside.used()
        return self._get().__await__()

    async def __aenter__(self) -> RowHeld:
        with self._inside:
            holding = await self._desk.obtain(*self._wanted)
        holding.entered = True
        scope = self._desk.new_scope()
        self._entered = holding, scope
        scope.__enter__()
        holding.loss.watch(scope)
        return RowHeld(self._desk, holding)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._entered is not None
        (holding, scope), self._entered = self._entered, None
        self._inside.left()
        holding.loss.unwatch(scope)
        held = RowHeld(self._desk, holding)
        try:
            # True: the cancellation was ours, because the lease was lost.
            swallowed = scope.__exit__(exc_type, exc, traceback)
        except BaseException:  # what is left of a group without our cancellation
            await _release_at_exit(held, holding, quietly=True)
            raise
        await _release_at_exit(held, holding, quietly=exc is not None and not swallowed)
        if swallowed and held.lost is not None:  # released in the body, by then
            raise _lock_lost(holding, held.lost)
        # Never True, and typed so: else every `return` in a body is one "missing".
        assert exc is None or not swallowed, "a lost grant raised when it was released"

    async def _get(self) -> RowHeld:
        return RowHeld(self._desk, await self._desk.obtain(*self._wanted))


async def _release_at_exit(
    held: RowHeld, holding: RowLease[Any], *, quietly: bool
) -> None:
    """Release; the body's own error, if any, goes before what this finds out."""
    try:
        await held.release()
    except NotOwner:  # released in the body
        if holding.closed_under and not quietly:
            raise Closed from None
    except LockError as error:
        if not quietly:
            raise
        row = holding.row.label
        log_event(log, "release_failed", resource=row, error=str(error))


def _lock_lost(holding: RowLease[Any], reason: LossReason) -> LockLost:
    return LockLost(
        reason=reason,
        resource=holding.row.label,
        mode=str(holding.attempt.mode),
        fence=0 if holding.grant is None else holding.grant.fence,
    )


@final
class RowLock:
    """A lock that is three columns of the row it locks. Made without I/O.

    Each step is one published UPDATE: programs in any language that use the same
    statements exclude ours and are excluded. Readers starve writers, and nobody has a
    place in a queue.

    Without a lease the row has no ticket: a holder that dies keeps it until somebody
    sets the row right, and if the reply to a step is lost nobody can tell whether it
    was carried out (``AcquireUncertain``). With ``lease`` there is a fourth column of
    ours in the row: a holder that died is out of the way of ours when its lease ends,
    a lost reply is resolved by ticket, and a grant has a fence. The lease is renewed on
    the loop, which must not be blocked for longer; losing it cancels the body of
    ``async with`` and raises ``LockLost``.
    """

    def __init__(self, desk: RowLockManager[Any], row: RowTarget[Any]) -> None:
        """Made by ``row_lock``, not by users."""
        self._desk = desk
        self._row = row

    def read(self, reason: str = "", timeout: float | None = None) -> RowAcquisition:
        """Together with other readers: ``await`` it, or use it in ``async with``.

        ``reason`` is stored in the row, for whoever is refused. ``timeout``: seconds to
        wait; None for ever, 0 only tries. A request under way is waited for.

        Raises (when awaited or entered):
            LockTimeout: not obtained in time; ``holders`` tells mark and reason.
            WouldDeadlock: this task holds the row already.
            AcquireUncertain: the reply was lost; it may be locked till its lease ends.
            ConfigurationError: no such row, or several; a name that cannot be used.
            BadRecord: what stands there is not what a lock leaves behind.
            BackendError: the store failed.
            Closed: the ``Locks`` is closed, forked or of another loop.
        """
        return self._acquisition(Mode.READ, reason, timeout)

    def write(self, reason: str = "", timeout: float | None = None) -> RowAcquisition:
        """Alone; otherwise as ``read``."""
        return self._acquisition(Mode.WRITE, reason, timeout)

    async def try_read(self, reason: str = "") -> RowHeld | None:
        """Together with other readers, if that is possible now; else None.

        Raises what ``read`` raises, but for ``LockTimeout``.
        """
        return await self._try(Mode.READ, reason)

    async def try_write(self, reason: str = "") -> RowHeld | None:
        """Alone, if the row is free now; else None.

        Raises what ``read`` raises, but for ``LockTimeout``.
        """
        return await self._try(Mode.WRITE, reason)

    async def look(self) -> RowState:
        """What stands in the row: mark, number of readers, last reason.

        Raises:
            ConfigurationError, BadRecord, BackendError, Closed: as ``read``.
        """
        return await self._desk.look(self._row)

    async def grants(self) -> tuple[RowGrant, ...]:
        """Our grants in the row, by holder, those too whose time is over.

        Other programs' are not among them, and none is without a lease.

        Raises:
            ConfigurationError, BadRecord, BackendError, Closed: as ``read``.
        """
        return await self._desk.grants(self._row)

    def _acquisition(
        self, mode: Mode, reason: str, timeout: float | None
    ) -> RowAcquisition:
        check_seconds("timeout", timeout)
        return RowAcquisition(
            self._desk, self._row, mode, check_reason(reason), timeout
        )

    async def _try(self, mode: Mode, reason: str) -> RowHeld | None:
        got = await self._desk.acquire(self._row, mode, check_reason(reason), 0)
        return RowHeld(self._desk, got) if isinstance(got, RowLease) else None

    def __repr__(self) -> str:
        return f"<RowLock {self._row.label!r}>"


class SessionRowLocks:
    """Over the tables that its store can reach."""

    def __init__(self, session: Session, store: SupportsRowLocks) -> None:
        """None yet."""
        self._dialect = store.dialect
        self._tells = store if isinstance(store, NotifiesRowReleases) else None
        self._desk: RowLockManager[Statement] = RowLockManager(
            store, session.loop, session.check
        )

    def lock(self, table: RowTable, key: RowKey, lease: float | None) -> RowLock:
        """That row's."""
        texts = RowSql(table, key, self._dialect)
        tells, watch = self._tells, None
        if tells is not None:
            watch = partial(tells.watch_row, texts.table, str(key))
        row = RowTarget.of(table.name, str(key), texts, texts, lease, watch)
        return RowLock(self._desk, row)

    def close(self) -> None:
        """Give all of them back."""
        self._desk.close()

    async def wait_closed(self) -> None:
        """Wait until that is done; after ``close``."""
        await self._desk.wait_closed()
