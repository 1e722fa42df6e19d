"""The row locks of one ``Locks``.

``RowLock``: a readers-writer lock in the resource's own row (S2).
"""

from __future__ import annotations

from functools import partial
from typing import Any, final

from aiorwlock_remote.core.lease import check_seconds
from aiorwlock_remote.core.row import RowKey, RowState, RowTable
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.row_plans import Statement
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports.recipes import NotifiesRowReleases, SupportsRowLocks
from aiorwlock_remote.recipes.row_lock.held import RowAcquisition, RowHeld
from aiorwlock_remote.recipes.row_lock.lease import RowLease
from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.sql import RowSql
from aiorwlock_remote.recipes.row_lock.target import RowTarget


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
            store, session.host, session.check
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
