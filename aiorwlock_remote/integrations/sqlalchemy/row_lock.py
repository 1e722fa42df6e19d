"""Row locks in your tables, through your own ``AsyncEngine``.

::

    class Invoice(RowLockColumns, Base):
        __tablename__ = "invoices"
        id: Mapped[int] = mapped_column(primary_key=True)

    async with row_lock(engine, Invoice, 42).write("closing the books"):
        ...

Needs asyncio, SQLAlchemy 2, and SQLite, PostgreSQL, MariaDB, MySQL or Oracle. Each step
is one UPDATE, committed at once over another connection than your session's: lock
before you begin a transaction that changes the row, and commit before you leave.
``RowLockStatements`` has the UPDATEs for transactions of your own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.elements import ClauseElement

from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.core.row import (
    READ_LOCK,
    UNLOCK,
    WRITE_LOCK,
    RowKey,
    RowTable,
    check_key,
    lock_plan,
    unlock_plan,
)
from aiorwlock_remote.core.row_dialects import DIALECTS
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import LockModeName, Mode, mode_of
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds
from aiorwlock_remote.errors import ConfigurationError, LockBusy, LockLost
from aiorwlock_remote.integrations._row_locks import RowSessions
from aiorwlock_remote.integrations.sqlalchemy.engine import (
    MAX_ROW_WAIT,
    Statement,
    execute,
    plan_runner,
    table_of,
)
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.target import RowSql, RowTarget

__all__ = ["RowLeaseColumns", "RowLockColumns", "RowLockStatements", "row_lock"]

_NO_VALUES: tuple[type[object], ...] = (
    ClauseElement,
    type,
    list,
    tuple,
    set,
    frozenset,
    dict,
)
"""Types whose comparison with a column may match many rows."""

LOCK_COLUMNS = RowTable("t")
"""The published names of the columns; the table's name is not used."""


class RowLockColumns:
    """Mixin for a mapped class: the columns of a row lock (mark, readers, reason)."""

    lock_mark: Mapped[str] = mapped_column(
        sa.String(9), default=UNLOCK, server_default=UNLOCK
    )
    read_lock_count: Mapped[int] = mapped_column(
        sa.Integer, default=0, server_default="0"
    )
    lock_reason: Mapped[str | None] = mapped_column(sa.Text)


class RowLeaseColumns(RowLockColumns):
    """Mixin for a mapped class: the columns of a row lock, and one for leases."""

    lock_grants: Mapped[str | None] = mapped_column(sa.Text)


class RowLockStatements:
    """The UPDATEs that lock and unlock one row, for transactions of your own.

    They take effect for other connections on commit; until then the transaction itself
    keeps other programs from the row. ``take`` and ``give`` execute one statement and
    raise if it changed no row. Table, key and column names are those of ``row_lock``.
    """

    def __init__(
        self,
        table: sa.Table | type[Any],
        row_id: object,
        *,
        key: str | None = None,
        mark: str = LOCK_COLUMNS.mark,
        count: str = LOCK_COLUMNS.count,
        reason: str = LOCK_COLUMNS.reason,
        grants: str | None = None,
    ) -> None:
        self.table: sa.Table = table_of(table)
        # Other types are left to the column, which may be a UUID or a date.
        if row_id is None or isinstance(row_id, int | str):
            check_key(cast("RowKey", row_id))
        elif isinstance(row_id, _NO_VALUES) or hasattr(row_id, "__clause_element__"):
            raise ConfigurationError(
                what=f"a row's key must be a value, not {type(row_id).__name__}"
            )
        self._id = row_id
        self._key = _key_column(self.table, key)
        self._mark = _column(self.table, mark)
        self._count = _column(self.table, count)
        self._reason = _column(self.table, reason)
        self._grants = None if grants is None else _column(self.table, grants)
        self._conditions: tuple[sa.TextClause, ...] = ()
        self._now = ""

    async def take(
        self,
        where: AsyncSession | AsyncConnection,
        mode: LockModeName,
        reason: str = "",
    ) -> None:
        """Lock the row in the transaction of ``where``, and store ``reason`` in it.

        Raises:
            LockBusy: the row is locked; ``holders`` has its mark and reason.
            ConfigurationError: the row or the mode does not exist, or several rows have
                the key.
            BadRecord: the columns contain what no row lock writes.
            SQLAlchemyError: the driver's error; roll the transaction back.
        """
        plan = lock_plan(self, mode_of(mode), reason, check=True)
        step = await run_plan(plan, partial(execute, where))
        if not step.done:
            bind = where.get_bind() if isinstance(where, AsyncSession) else where
            state = self.row(bind.dialect.name).state(step)
            raise LockBusy(resource=self.label, holders=(str(state),))

    async def give(
        self,
        where: AsyncSession | AsyncConnection,
        mode: LockModeName,
        reason: str = "",
    ) -> None:
        """Unlock the row in the transaction of ``where``; store ``reason`` in it.

        Raises:
            LockLost: the row was not locked in this mode.
            ConfigurationError: the mode does not exist.
            SQLAlchemyError: the driver's error; roll the transaction back.
        """
        plan = unlock_plan(self, mode_of(mode), reason)
        step = await run_plan(plan, partial(execute, where))
        if not step.done:
            raise LockLost(reason="forced", resource=self.label, mode=mode)

    @property
    def label(self) -> str:
        """``table/key``, as error messages name the row."""
        return f"{self.table.fullname}/{self._id}"

    def read_lock(self, reason: str = "") -> sa.Update:
        """Return the UPDATE that locks the row for a reader (1 row if granted)."""
        return self.lock(Mode.READ, reason)

    def read_unlock(self, reason: str = "") -> sa.Update:
        """Return the UPDATE that unlocks one reader (0 rows if there is none)."""
        return self.unlock(Mode.READ, reason)

    def write_lock(self, reason: str = "") -> sa.Update:
        """Return the UPDATE that locks the row for a writer (1 row if granted)."""
        return self.lock(Mode.WRITE, reason)

    def write_unlock(self, reason: str = "") -> sa.Update:
        """Return the UPDATE that unlocks the writer (0 rows if there is none)."""
        return self.unlock(Mode.WRITE, reason)

    def look(self) -> sa.Select[Any]:
        """Return the SELECT of the row's mark, number of readers and reason."""
        found = sa.select(self._mark, self._count, self._reason)
        return found.where(self._key == self._id)

    def lock(self, mode: Mode, reason: str) -> sa.Update:
        free = sa.and_(self._mark == UNLOCK, self._count == 0)
        if mode_of(mode) is Mode.WRITE:
            return self._step(free, (self._mark, WRITE_LOCK), reason=reason)
        return self._step(
            sa.or_(free, self._is_read()),
            (self._mark, READ_LOCK),
            (self._count, self._count + 1),
            reason=reason,
        )

    def unlock(self, mode: Mode, reason: str) -> sa.Update:
        if mode_of(mode) is Mode.WRITE:
            held = self._mark == WRITE_LOCK
            return self._step(held, (self._mark, UNLOCK), reason=reason)
        # The mark before the count: MariaDB evaluates SET from left to right and sees
        # the new count, so the last reader would leave the mark.
        left = sa.case((self._count > 1, self._mark), else_=UNLOCK)
        return self._step(
            self._is_read(),
            (self._mark, left),
            (self._count, self._count - 1),
            reason=reason,
        )

    def read(self) -> sa.Select[Any]:
        found = (self._mark, self._count, self._reason, self._leases())
        time: sa.ColumnClause[Any] = sa.literal_column(self._now)
        return sa.select(*found, time).where(self._key == self._id)

    def swap(self, old: Sequence[object], new: Sequence[object]) -> sa.Update:
        mark, count, _, grants = old
        same = self._leases().is_(None) if grants is None else self._leases() == grants
        unchanged = self._mark == mark, self._count == count, same
        change = sa.update(self.table).where(
            self._key == self._id, *unchanged, *self._conditions
        )
        columns = (self._mark, self._count, self._reason, self._leases())
        return change.ordered_values(*zip(columns, new, strict=True))

    def row(self, dialect: str, lease: float | None = None) -> RowTarget[Statement]:
        """Return the row as ``RowLock`` needs it; each statement commits at once.

        ``dialect``: SQLAlchemy's name of the database; ``lease``: seconds, None: no
        lease.
        """
        columns = [self._key, self._mark, self._count, self._reason]
        if self._grants is not None:
            columns.append(self._grants)
        names = RowTable(self.table.fullname, *(column.name for column in columns))
        key = self._id if isinstance(self._id, int | str) else str(self._id)
        sql = RowSql(names, key, DIALECTS[dialect])
        bounded = self._bounded(dialect)
        return RowTarget.of(sql, str(self._id), bounded, lease)

    def _bounded(self, dialect: str) -> RowLockStatements:
        # The time is set for the statement's transaction, so these are not for the
        # user's own transactions.
        bounded = copy(self)
        bounded._now = DIALECTS[dialect].now  # noqa: SLF001 - its own class
        wait = DIALECTS[dialect].patient(round(MAX_ROW_WAIT * 1000)).condition
        bounded._conditions = (sa.text(wait),) if wait else ()  # noqa: SLF001 - as above
        return bounded

    def _leases(self) -> sa.Column[Any]:
        assert self._grants is not None, "asked for with a lease only"
        return self._grants

    def _step(
        self,
        condition: sa.ColumnElement[bool],
        *values: tuple[sa.Column[Any], object],
        reason: str,
    ) -> sa.Update:
        change = sa.update(self.table).where(
            self._key == self._id, condition, *self._conditions
        )
        return change.ordered_values(*values, (self._reason, check_reason(reason)))

    def _is_read(self) -> sa.ColumnElement[bool]:
        return sa.and_(self._mark == READ_LOCK, self._count > 0)


def row_lock(
    where: AsyncEngine | AsyncSession,
    table: sa.Table | type[Any],
    row_id: object,
    *,
    key: str | None = None,
    mark: str = LOCK_COLUMNS.mark,
    count: str = LOCK_COLUMNS.count,
    reason: str = LOCK_COLUMNS.reason,
    lease: float | None = None,
    grants: str = LOCK_COLUMNS.grants,
) -> RowLock:
    """Return the lock of one row of a table or a mapped class; no I/O.

    Args:
        where: The engine, or a session of it, whose transaction is not used.
        table: The table whose columns contain the lock.
        row_id: The row's key.
        key: Name of the column that identifies the row; None: the primary key.
        mark: Name of the column for ``Unlock``, ``ReadLock`` or ``WriteLock``.
        count: Name of the column for the number of readers.
        reason: Name of the column for the reason.
        lease: Seconds after which a grant that is not renewed ends; None: never.
        grants: Name of the column for leases; unused without ``lease``.

    Raises:
        ConfigurationError: a column does not exist, the key's column is not unique in
            the table, no asyncio loop is running, or the engine is not supported.
    """
    engine = where.bind if isinstance(where, AsyncSession) else where
    if not isinstance(engine, AsyncEngine) or engine.dialect.name not in DIALECTS:
        raise ConfigurationError(
            what=f"row locks do not work with {type(where).__name__}",
            hint=f"an AsyncEngine, or a session of one, for {', '.join(DIALECTS)}",
        )
    check_seconds("lease", lease, least=MIN_LEASE)
    names = {"mark": mark, "count": count, "reason": reason}
    if lease is not None:
        names["grants"] = grants
    statements = RowLockStatements(table, row_id, key=key, **names)
    row = statements.row(engine.dialect.name, lease)
    return _SESSIONS.lock(row, engine.sync_engine, partial(plan_runner, engine))


_SESSIONS: RowSessions[Statement] = RowSessions(
    "SQLAlchemy",
    "under trio: connect('postgresql://…').row_lock(…)",
    weakref.WeakKeyDictionary(),
)
"""By the sync engine, which every AsyncEngine and session of one database shares."""


def _column(table: sa.Table, name: str) -> sa.Column[Any]:
    column: sa.Column[Any] | None = table.c.get(name)
    if column is None:
        raise ConfigurationError(
            what=f"{table.fullname} has no column {name}",
            hint="RowLockColumns adds the columns of a lock to a mapped class",
        )
    return column


def _key_column(table: sa.Table, name: str | None) -> sa.Column[Any]:
    # Several rows with one key would all be changed by one step of a lock.
    if name is not None:
        column = _column(table, name)
        if _unique(table, column):
            return column
        raise ConfigurationError(
            what=f"{table.fullname}.{name} may be the same in several rows",
            hint="use a column that is unique in the database, and unique=True here",
        )
    keys = list(table.primary_key.columns)
    if len(keys) != 1:
        raise ConfigurationError(
            what=f"{table.fullname}: {len(keys)} columns in its primary key",
            hint="name the one column that identifies the row: key=…",
        )
    return keys[0]


def _unique(table: sa.Table, column: sa.Column[Any]) -> bool:
    kinds = sa.PrimaryKeyConstraint, sa.UniqueConstraint
    keys = [*(each for each in table.constraints if isinstance(each, kinds))]
    whole = [index for index in table.indexes if index.unique and not _partial(index)]
    return any([*each.columns] == [column] for each in (*keys, *whole))


def _partial(index: sa.Index) -> bool:
    options: Any = index.dialect_options
    return any(options[name]["where"] is not None for name in ("postgresql", "sqlite"))
