"""Row locks as programs use them: ``RowLock``, ``RowAcquisition`` and ``RowHeld``."""

from __future__ import annotations

from functools import partial
from typing import Any, final

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.row import RowKey, RowState, RowTable
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import NotOwner
from aiorwlock_remote.locks.acquisition import BaseAcquisition
from aiorwlock_remote.locks.held import BaseHeld, state_of
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import HeldState, Session
from aiorwlock_remote.ports import Capability, StoreBase
from aiorwlock_remote.recipes.row_lock.acquirer import RowAcquirer
from aiorwlock_remote.recipes.row_lock.target import RowSql, RowTarget
from aiorwlock_remote.runtime.lease import AcquireRequest


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
    fence. The lease is renewed in the background, also while the event loop is blocked;
    if it is lost, the body of ``async with`` is cancelled and ``LockLost`` is raised.
    Programs that use the published statements alone do not see leases.
    """

    def __init__(
        self, session: Session, acquirer: RowAcquirer[Any], row: RowTarget[Any]
    ) -> None:
        self._session = session
        self._acquirer = acquirer
        self._row = row
        self._options = Options(lease=row.strategy.lease)

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
        self._session.check()
        return await self._acquirer.look(self._row)

    async def grants(self) -> tuple[RowGrant, ...]:
        """Return the grants in the row, expired ones too; empty without a lease.

        Locks of programs that use the published statements alone are not among them.

        Raises:
            ConfigurationError, BadRecord, BackendError, Closed: as ``read``.
        """
        self._session.check()
        return await self._acquirer.grants(self._row)

    def _acquisition(
        self, mode: Mode, reason: str, timeout: float | None
    ) -> RowAcquisition:
        check_seconds("timeout", timeout)
        request = self._request(mode, reason, timeout)
        return RowAcquisition(self._session, self._acquirer, request, self._options)

    async def _try(self, mode: Mode, reason: str) -> RowHeld | None:
        request = self._request(mode, reason, 0)
        state = await self._session.try_acquire(request, self._options, self._acquirer)
        return None if state is None else RowHeld(state, self._acquirer)

    def _request(
        self, mode: Mode, reason: str, timeout: float | None
    ) -> AcquireRequest:
        terms, reason = self._options.terms, check_reason(reason)
        return AcquireRequest(self._row, mode, Policy.READER, terms, timeout, reason)

    def __repr__(self) -> str:
        return f"<RowLock {self._row.label!r}>"


@final
class RowHeld(BaseHeld):
    """A row lock that was obtained; valid until it is released or lost.

    A lease is renewed until its owner is gone: the task that entered ``async with``
    ended, or the last reference to a ``RowHeld`` from ``await`` was dropped
    (``ResourceWarning``). Without a lease a dropped lock stays in the row until the
    ``Locks`` is closed.
    """

    __slots__ = ("_acquirer",)

    def __init__(self, state: HeldState, acquirer: RowAcquirer[Any]) -> None:
        super().__init__(state)
        self._acquirer = acquirer

    @property
    def mode(self) -> Mode:
        """``read`` or ``write``: what the lock allows its holder to do."""
        return self._lease.mode

    @property
    def reason(self) -> str:
        """The reason that was stored in the row when it was locked."""
        return self._lease.who.reason

    @property
    def fence(self) -> int | None:
        """A number that is higher for each later writer or batch of readers.

        A batch: readers that hold the row at the same time. None without a lease.
        """
        return None if self._lease.terms.lease is None else self._lease.fence

    async def extend(self) -> None:
        """Renew the lease now, in addition to the renewals in the background.

        If the call is cancelled, the lease may have been renewed.

        Raises:
            LockLost: the lock was lost.
            NotOwner: the lock was released, or has no lease.
            BackendError: the store failed; the lease keeps its old deadline.
        """
        self._state.check()
        self._state.session.check()
        if self._lease.terms.lease is None:
            raise NotOwner(resource=self._lease.resource.label, action="extend")
        await self._acquirer.extend(self._lease)
        self._state.check()

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
        if reason is not None:
            check_reason(reason)
        send = partial(self._acquirer.release, reason=reason)
        try:
            held = await self._state.release(send)
        finally:
            await self._acquirer.wait_released(self._lease)
        if not held:
            raise NotOwner(resource=self._lease.resource.label, action="release")

    def _abandon(self) -> str:
        if self._lease.terms.lease is not None:
            super()._abandon()
            return "it ends with its lease"
        # It stays the task's, which must not wait for itself
        # (test_without_a_lease_it_stays).
        return "the row stays locked"


@final
class RowAcquisition(BaseAcquisition[RowHeld]):
    """One attempt to lock a row; used once.

    ``await`` it for a ``RowHeld`` that lives until it is released, or enter it with
    ``async with``. If the caller is cancelled, a lock that a request under way still
    obtains is released.
    """

    def __init__(
        self,
        session: Session,
        acquirer: RowAcquirer[Any],
        request: AcquireRequest,
        options: Options,
    ) -> None:
        self._what = f"{request.mode}()"
        self._label = request.resource.label
        self._acquirer = acquirer
        self._acquire = partial(session.acquire, request, options, acquirer.acquire)

    def _name(self) -> str:
        return f"{self._what} of {self._label}"

    async def _get(self) -> RowHeld:
        return RowHeld(await self._acquire(owned_by_task=False), self._acquirer)

    async def _enter(self) -> RowHeld:
        state = await self._acquire(owned_by_task=True)
        held = RowHeld(state, self._acquirer)
        state.enter()
        return held

    async def _leave(self, held: RowHeld, *exc_info: *ExcInfo) -> None:
        state = state_of(held)
        try:
            await state.exit(*exc_info)
        finally:
            # Also of a body that failed or was cancelled: an engine has no ``Locks``
            # that waits when it is closed, and if the loop ended before, the row would
            # stay locked (test_a_body_that_fails_as_the_loop_ends).
            await self._acquirer.wait_released(state.lease)


class SessionRowLocks:
    """Makes the row locks of a ``Locks``, in the database of its store."""

    def __init__(self, session: Session, store: StoreBase) -> None:
        self._session = session
        expect_renewals = store.expect_row_renewals
        self._acquirer = RowAcquirer(
            session.client, store, expect_renewals=expect_renewals
        )
        self._dialect = store.dialect
        notifies = Capability.ROW_RELEASES in store.capabilities
        self._watch_row = store.watch_row if notifies else None

    def lock(self, table: RowTable, key: RowKey, lease: float | None) -> RowLock:
        """Return the lock of the row of ``table`` with this key; no I/O.

        ``lease``: seconds that a grant lives unless it is renewed; None: for ever.
        """
        sql = RowSql(table, key, self._dialect)
        watch = None
        if self._watch_row is not None:
            watch = partial(self._watch_row, sql.table, str(key))
        row = RowTarget.of(sql, str(key), sql, lease, watch=watch)
        return RowLock(self._session, self._acquirer, row)
