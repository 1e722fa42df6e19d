"""Row locks as programs use them: ``RowLock``, ``RowAcquisition`` and ``RowHeld``."""

from __future__ import annotations

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
from aiorwlock_remote.locks.session import Session, end_body
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import NotifiesRowReleases, SupportsRowLocks
from aiorwlock_remote.recipes.row_lock.manager import RowLease, RowLockManager
from aiorwlock_remote.recipes.row_lock.target import RowSql, RowTarget, log


@final
class RowLock:
    """A readers-writer lock in three columns of a row; creating it does no I/O.

    Each step is one published UPDATE: programs in any language that execute the same
    statements exclude this one and are excluded by it. There is no queue, and readers
    starve writers.

    Without a lease a holder that dies leaves the row locked until an administrator
    frees it, and if the reply to a request is lost, ``AcquireUncertain`` says that the
    row may be locked. With a lease the row has a fourth column: a dead holder's lock
    ends with its lease, a lost reply is resolved by a ticket, and each grant has a
    fence. The lease is renewed in the event loop, which must not be blocked for
    longer; if it is lost, the body of ``async with`` is cancelled and ``LockLost`` is
    raised. Programs that use the published statements alone do not see leases.
    """

    def __init__(self, manager: RowLockManager[Any], row: RowTarget[Any]) -> None:
        self._manager = manager
        self._row = row

    def read(self, reason: str = "", timeout: float | None = None) -> RowAcquisition:
        """Return an attempt to lock the row together with other readers.

        ``await`` it for a ``RowHeld``, or use it in ``async with``. If the caller is
        cancelled, a lock that a request under way still obtains is released.

        Args:
            reason: Stored in the row; refused callers see it.
            timeout: Seconds to wait; None: for ever; 0: one attempt. The reply to a
                request under way is waited for beyond the timeout.

        Raises:
            LockTimeout: the row was not obtained in time; ``holders`` has its mark and
                reason.
            WouldDeadlock: this task already holds the row.
            AcquireUncertain: the reply was lost; the row may be locked, with a lease
                until the lease ends.
            ConfigurationError: the row does not exist, or several rows have its key; an
                argument is not valid.
            BadRecord: the columns contain what no row lock writes.
            BackendError: the store failed.
            Closed: the ``Locks`` is closed, forked or of another event loop.
        """
        return self._acquisition(Mode.READ, reason, timeout)

    def write(self, reason: str = "", timeout: float | None = None) -> RowAcquisition:
        """Return an attempt to lock the row alone: ``await`` it, or use ``async with``.

        Arguments and errors are those of ``read``: ``reason`` is stored in the row,
        ``timeout`` is seconds to wait, None: for ever; 0: one attempt.
        """
        return self._acquisition(Mode.WRITE, reason, timeout)

    async def try_read(self, reason: str = "") -> RowHeld | None:
        """Lock the row together with other readers, or return None if it is refused.

        Raises what ``read`` raises, except ``LockTimeout``.
        """
        return await self._try(Mode.READ, reason)

    async def try_write(self, reason: str = "") -> RowHeld | None:
        """Lock the row alone, or return None if it is not free.

        Raises what ``read`` raises, except ``LockTimeout``.
        """
        return await self._try(Mode.WRITE, reason)

    async def look(self) -> RowState:
        """Return the row's mark, number of readers and last reason.

        Raises:
            ConfigurationError: the row does not exist, or several rows have its key.
            BadRecord: the columns contain what no row lock writes.
            BackendError: the store failed.
            Closed: the ``Locks`` is closed, forked or of another event loop.
        """
        return await self._manager.look(self._row)

    async def grants(self) -> tuple[RowGrant, ...]:
        """Return the grants in the row, expired ones too; empty without a lease.

        Locks of programs that use the published statements alone are not among them.

        Raises:
            ConfigurationError, BadRecord, BackendError, Closed: as ``read``.
        """
        return await self._manager.grants(self._row)

    def _acquisition(
        self, mode: Mode, reason: str, timeout: float | None
    ) -> RowAcquisition:
        check_seconds("timeout", timeout)
        reason = check_reason(reason)
        return RowAcquisition(self._manager, self._row, mode, reason, timeout)

    async def _try(self, mode: Mode, reason: str) -> RowHeld | None:
        got = await self._manager.acquire(self._row, mode, check_reason(reason), 0)
        return RowHeld(self._manager, got) if isinstance(got, RowLease) else None

    def __repr__(self) -> str:
        return f"<RowLock {self._row.label!r}>"


@final
class RowHeld:
    """A row lock that was obtained; valid until it is released or lost.

    A lease is renewed until its owner is gone: the task that entered ``async with``
    ended, or the last reference to a ``RowHeld`` from ``await`` was dropped
    (``ResourceWarning``). Without a lease a dropped lock stays in the row until the
    ``Locks`` is closed.
    """

    def __init__(self, manager: RowLockManager[Any], lease: RowLease[Any]) -> None:
        self._manager = manager
        self._lease = lease

    @property
    def mode(self) -> Mode:
        """``read`` or ``write``: what the lock allows its holder to do."""
        return self._lease.attempt.mode

    @property
    def reason(self) -> str:
        """The reason that was stored in the row when it was locked."""
        return self._lease.attempt.reason

    @property
    def fence(self) -> int | None:
        """A number that is higher for each later writer or batch of readers.

        A batch: readers that hold the row at the same time. None without a lease.
        """
        return self._lease.fence

    @property
    def expires_in(self) -> float | None:
        """Seconds until the lock expires if it is not renewed; None: never.

        Zero once it was released or lost.
        """
        if self._lease.over.is_set() or self.lost is not None:
            return 0.0
        left = self._lease.left
        return None if left == math.inf else max(0.0, left)

    @property
    def lost(self) -> LossReason | None:
        """Why the lock was lost, as far as this process knows; None if it was not."""
        return self._lease.loss_reason()

    def check(self) -> None:
        """Raise if this process knows that the lock is not held any more; no I/O.

        Raises:
            LockLost: its lease has expired, or another program unlocked the row.
            NotOwner: the lock was released.
            Closed: the ``Locks`` was closed.
        """
        if self._lease.closed_under:
            raise Closed
        if self._lease.over.is_set():
            raise NotOwner(resource=self._lease.row.label, action="check")
        if self.lost is not None:
            raise _lock_lost(self._lease, self.lost)

    async def extend(self) -> None:
        """Renew the lease now, in addition to the renewals in the background.

        If the call is cancelled, the lease may have been renewed.

        Raises:
            LockLost: the lock was lost.
            NotOwner: the lock was released, or has no lease.
            BackendError: the store failed; the lease keeps its old deadline.
        """
        if self._lease.over.is_set() or self._lease.grant is None:
            raise NotOwner(resource=self._lease.row.label, action="extend")
        if not await self._manager.extend(self._lease):
            raise _lock_lost(self._lease, self._lease.lost or "expired")

    async def release(self, reason: str | None = None) -> None:
        """Unlock the row. The request is sent even if this call is cancelled.

        A failed release is repeated in the background until the store has answered or
        the lease has ended; without a lease only if it was certainly not carried out.
        A row that was deleted under a write lock counts as released.

        Args:
            reason: Stored in the row in place of the reason of the attempt.

        Raises:
            LockLost: the lease had expired, another program had unlocked the row, or a
                row locked for reading was deleted.
            NotOwner: the lock was released before.
            BackendUnavailable: the row may still be locked; see its hint.
            BackendError: the store failed; the row is still locked.
        """
        lease, manager = self._lease, self._manager
        row, mode, lost = lease.row, lease.attempt.mode, self.lost
        if reason is not None:
            check_reason(reason)
        try:
            got = await manager.release(lease, reason)
        except BackendUnavailable as exc:
            if lost is not None:
                # The answer would not change that the lock was lost before
                # (test_at_a_database_that_is_gone).
                raise _lock_lost(lease, lost) from exc
            if lease.grant is not None:
                raise
            if exc.nothing_done:
                rest = "not given back"
                hint = "repeated in the background; if this process ends before, run "
            else:
                rest = "perhaps not given back"
                hint = "this process does not repeat it; if no other holder is left, "
            raise BackendUnavailable(
                what=f"{row.label} ({mode}) was {rest}: {exc.what}",
                hint=hint + row.sql.repair("free_row"),
                nothing_done=exc.nothing_done,
            ) from exc.__cause__
        if got is None:
            raise NotOwner(resource=row.label, action="release")
        # Although no other program has come since (test_by_hand).
        if lost is not None:
            raise _lock_lost(lease, lost)
        # A writer may delete its row (test_a_writer_may_delete_the_row); a row that we
        # only read was deleted by a program that ignored the lock.
        exists = got.step.count or got.step.found is not None
        deleted = not exists and mode is Mode.WRITE
        if not got.held and got.step.count < 2 and not deleted:
            raise _lock_lost(lease, lease.lost or lease.reason_gone())

    def __repr__(self) -> str:
        return f"<RowHeld {self._lease.row.label!r} ({self._lease.attempt.mode})>"

    def __reduce__(self) -> NoReturn:
        # The destructor of a copy would end the lease's renewal.
        raise TypeError("a RowHeld can be neither copied nor pickled")

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        lease = getattr(self, "_lease", None)
        # A child's copies are dropped, too; the lock is the parent's
        # (test_a_forked_child_tells_nothing).
        if lease is None or lease.entered or self._manager.forked:
            return
        # Before the warning: a handler that records the warning keeps a reference to
        # this object, and renewal would go on (test_it_ends_with_its_lease).
        lease.dropped = True
        if not lease.over.is_set() and lease.loss_reason() is None:
            leased = lease.grant is not None
            rest = "it ends with its lease" if leased else "the row stays locked"
            warn(
                f"{self!r} was dropped without release; {rest}",
                ResourceWarning,
                source=self,
            )


@final
class RowAcquisition:
    """One attempt to lock a row; used once.

    ``await`` it for a ``RowHeld`` that lives until it is released, or enter it with
    ``async with``. If the caller is cancelled, a lock that a request under way still
    obtains is released.
    """

    def __init__(
        self,
        manager: RowLockManager[Any],
        row: RowTarget[Any],
        mode: Mode,
        reason: str,
        timeout: float | None,
    ) -> None:
        self._manager = manager
        self._request = row, mode, reason, timeout
        self._inside = SingleEntry(f"{mode}()", lambda: f"{mode}() of {row.label}")
        self._entered: tuple[RowLease[Any], anyio.CancelScope] | None = None

    def __await__(self) -> Generator[Any, Any, RowHeld]:
        self._inside.used()
        return self._held().__await__()

    async def __aenter__(self) -> RowHeld:
        with self._inside:
            lease = await self._manager.obtain(*self._request)
        # Before the user can drop the `RowHeld`, whose destructor looks at it
        # (test_a_block_keeps_it).
        lease.entered = True
        scope = self._manager.loop.new_scope()
        self._entered = lease, scope
        scope.__enter__()
        lease.body = scope
        if lease.lost is not None or lease.closed_under:  # before this line
            scope.cancel()
        return RowHeld(self._manager, lease)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._entered is not None
        (lease, scope), self._entered = self._entered, None
        self._inside.left()
        lease.body = None
        held = RowHeld(self._manager, lease)
        release = partial(release_at_exit, held)
        lost = await end_body(scope, exc_type, exc, traceback, release)
        if lost and held.lost is not None:
            # Released in the body after the loss had begun to cancel it.
            raise _lock_lost(lease, held.lost)
        # Never True, and typed so: else checkers see a missing `return` in each body.
        assert not lost, "a lost grant raised when it was released"

    async def _held(self) -> RowHeld:
        return RowHeld(self._manager, await self._manager.obtain(*self._request))


async def release_at_exit(held: RowHeld, *, quietly: bool) -> None:
    """Release a row as the body that it protected ends; see ``ReleasesBody``."""
    lease = held._lease  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file
    try:
        await held.release()
    except NotOwner:  # released in the body
        if lease.closed_under and not quietly:
            raise Closed from None
    except LockError as error:
        if not quietly:
            raise
        resource = lease.row.label
        log_event(log, "release_failed", resource=resource, error=str(error))


def _lock_lost(lease: RowLease[Any], reason: LossReason) -> LockLost:
    return LockLost(
        reason=reason,
        resource=lease.row.label,
        mode=str(lease.attempt.mode),
        fence=lease.fence or 0,
    )


class SessionRowLocks(RowLockManager[Statement]):
    """Acquires row locks in the database of a ``Locks``, on behalf of its tasks."""

    def __init__(self, session: Session, store: SupportsRowLocks) -> None:
        super().__init__(store, session.loop, session.check)
        self._dialect = store.dialect
        self._notifies = store if isinstance(store, NotifiesRowReleases) else None

    def lock(self, table: RowTable, key: RowKey, lease: float | None) -> RowLock:
        """Return the lock of the row of ``table`` with this key; no I/O.

        ``lease``: seconds that a grant lives unless it is renewed; None: for ever.
        """
        sql = RowSql(table, key, self._dialect)
        watch = None
        if self._notifies is not None:
            watch = partial(self._notifies.watch_row, sql.table, str(key))
        return RowLock(self, RowTarget.of(sql, str(key), sql, lease, watch=watch))
