"""Row locks in tables of yours, through your own ``AsyncEngine``.

::

    class Invoice(RowLockColumns, Base):
        __tablename__ = "invoices"
        id: Mapped[int] = mapped_column(primary_key=True)

    async with row_lock(engine, Invoice, 42).write("closing the books"):
        ...

On asyncio, with SQLAlchemy 2, on SQLite, PostgreSQL, MariaDB, MySQL and Oracle. Each
step is one UPDATE, committed at once, over another connection than your session's: lock
before you begin a transaction that changes the row, and commit before you leave.
``RowLockStatements`` has the UPDATEs for transactions of your own.

Columns of a table, and which of them tells its rows apart.

The published UPDATEs of a row lock, as statements of SQLAlchemy.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

from sqlalchemy import (
    Column,
    ColumnClause,
    ColumnElement,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    Update,
    and_,
    case,
    literal_column,
    or_,
    select,
    text,
    update,
)
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
from aiorwlock_remote.core.text import check_reason, quoted
from aiorwlock_remote.core.ticket import Mode, mode_of
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds
from aiorwlock_remote.errors import ConfigurationError, LockBusy, LockLost
from aiorwlock_remote.integrations._row_locks import RowLockManagers
from aiorwlock_remote.integrations.sqlalchemy.engine import (
    LOCK_WAIT,
    EnginePlanRunner,
    Statement,
    execute,
)
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.target import RowIdentity, RowSql, RowTarget


def column_of(table: Table, name: str) -> Column[Any]:
    """The column of that name.

    Raises:
        ConfigurationError: there is none.
    """
    column: Column[Any] | None = table.c.get(name)
    if column is None:
        raise ConfigurationError(
            what=f"{table.fullname} has no column {name}",
            hint="RowLockColumns gives a mapped class those of a lock",
        )
    return column


def key_of(table: Table, name: str | None) -> Column[Any]:
    """The column of that name, or else the primary key.

    Raises:
        ConfigurationError: there is none, or several rows may have the same there. One
            step of a lock would change them all.
    """
    if name is not None:
        column = column_of(table, name)
        if _unique(table, column):
            return column
        raise ConfigurationError(
            what=f"{table.fullname}.{name} may be the same in several rows",
            hint="a column that is unique in the database, and unique=True here",
        )
    keys = list(table.primary_key.columns)
    if len(keys) != 1:
        raise ConfigurationError(
            what=f"{table.fullname}: {len(keys)} columns in its primary key",
            hint="name the one column that tells its rows apart: key=…",
        )
    return keys[0]


def _unique(table: Table, column: Column[Any]) -> bool:
    """As far as the table says."""
    kinds = PrimaryKeyConstraint, UniqueConstraint
    keys = [*(each for each in table.constraints if isinstance(each, kinds))]
    whole = [index for index in table.indexes if index.unique and not _partial(index)]
    return any([*each.columns] == [column] for each in (*keys, *whole))


def _partial(index: Index) -> bool:
    options: Any = index.dialect_options
    return any(options[name]["where"] is not None for name in ("postgresql", "sqlite"))


_NO_VALUES: tuple[type[object], ...] = (
    ClauseElement,
    type,
    list,
    tuple,
    set,
    frozenset,
    dict,
)
"""Who compares a column with one of these may mean many rows."""
LOCK_COLUMNS = RowTable("t")
"""Their published names, but for the table's."""


class RowLockStatements:
    """The published statements for one row, for transactions of your own.

    Others see what they did when the transaction is committed; until then it keeps
    everybody from the row. ``take`` and ``give`` execute one and tell what came of it.
    """

    def __init__(
        self,
        table: Table | type[Any],
        row_id: object,
        *,
        key: str | None = None,
        mark: str = LOCK_COLUMNS.mark,
        count: str = LOCK_COLUMNS.count,
        reason: str = LOCK_COLUMNS.reason,
        grants: str | None = None,
    ) -> None:
        """As ``row_lock``."""
        found: object = getattr(table, "__table__", table)
        if not isinstance(found, Table):
            raise ConfigurationError(
                what=f"{quoted(table)} is no table and no mapped class"
            )
        self.table: Table = cast("Table", found)
        if row_id is None or isinstance(row_id, int | str):
            check_key(cast("RowKey", row_id))
        elif isinstance(row_id, _NO_VALUES) or hasattr(row_id, "__clause_element__"):
            raise ConfigurationError(
                what=f"a row's key must be a value, not {type(row_id).__name__}"
            )
        self._id = row_id
        self._key = key_of(self.table, key)
        self._mark = column_of(self.table, mark)
        self._count = column_of(self.table, count)
        self._reason = column_of(self.table, reason)
        self._grants = None if grants is None else column_of(self.table, grants)

    async def take(
        self,
        where: AsyncSession | AsyncConnection,
        mode: Literal["read", "write"],
        reason: str = "",
    ) -> None:
        """Lock the row in the transaction of ``where``.

        Raises:
            LockBusy: it is locked; ``holders`` tells mark and reason.
            ConfigurationError: no such row, or several; no such mode.
            BadRecord: what stands there is not what a lock leaves behind.
            SQLAlchemyError: as the driver said; the transaction is yours to roll back.
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
        mode: Literal["read", "write"],
        reason: str = "",
    ) -> None:
        """Unlock the row in the transaction of ``where``.

        Raises:
            LockLost: it was not locked like that.
            ConfigurationError: no such mode.
            SQLAlchemyError: as the driver said; the transaction is yours to roll back.
        """
        plan = unlock_plan(self, mode_of(mode), reason)
        step = await run_plan(plan, partial(execute, where))
        if not step.done:
            raise LockLost(reason="forced", resource=self.label, mode=mode)

    def read_lock(self, reason: str = "") -> Update:
        """RLock: ``rowcount`` is 1 if it was granted, 0 if it was refused."""
        return self.lock(Mode.READ, reason)

    def read_unlock(self, reason: str = "") -> Update:
        """RUnlock."""
        return self.unlock(Mode.READ, reason)

    def write_lock(self, reason: str = "") -> Update:
        """WLock."""
        return self.lock(Mode.WRITE, reason)

    def write_unlock(self, reason: str = "") -> Update:
        """WUnlock."""
        return self.unlock(Mode.WRITE, reason)

    def lock(self, mode: Mode, reason: str) -> Update:
        """RLock or WLock."""
        free = and_(self._mark == UNLOCK, self._count == 0)
        if mode_of(mode) is Mode.WRITE:
            return self._step(free, (self._mark, WRITE_LOCK), reason=reason)
        return self._step(
            or_(free, self._is_read()),
            (self._mark, READ_LOCK),
            (self._count, self._count + 1),
            reason=reason,
        )

    def unlock(self, mode: Mode, reason: str) -> Update:
        """RUnlock or WUnlock."""
        if mode_of(mode) is Mode.WRITE:
            held = self._mark == WRITE_LOCK
            return self._step(held, (self._mark, UNLOCK), reason=reason)
        # The mark before the count: MariaDB sees new values from left to right.
        left = case((self._count > 1, self._mark), else_=UNLOCK)
        return self._step(
            self._is_read(),
            (self._mark, left),
            (self._count, self._count - 1),
            reason=reason,
        )

    def look(self) -> Select[Any]:
        """Mark, count and reason."""
        found = select(self._mark, self._count, self._reason)
        return found.where(self._key == self._id)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.table.fullname}/{self._id}"

    def read(self, now: str) -> Select[Any]:
        """Mark, count, reason, grants; and ``now``."""
        found = (self._mark, self._count, self._reason, self._leases())
        time: ColumnClause[Any] = literal_column(now)
        return select(*found, time).where(self._key == self._id)

    def swap(self, old: Sequence[object], new: Sequence[object]) -> Update:
        """Put these there in place of those."""
        mark, count, _, grants = old
        same = self._leases().is_(None) if grants is None else self._leases() == grants
        change = update(self.table).where(
            self._key == self._id, self._mark == mark, self._count == count, same
        )
        columns = (self._mark, self._count, self._reason, self._leases())
        return change.ordered_values(*zip(columns, new, strict=True))

    def row(self, dialect: str, lease: float | None = None) -> RowTarget[Statement]:
        """The row as a lock asks for it, and what there is to run if it is not fit."""
        columns = [self._key, self._mark, self._count, self._reason]
        if self._grants is not None:
            columns.append(self._grants)
        names = RowTable(self.table.fullname, *(column.name for column in columns))
        key = self._id if isinstance(self._id, int | str) else str(self._id)
        hints = RowSql(names, key, DIALECTS[dialect])
        patient = _BoundedWaitStatements(self, dialect)
        return RowTarget.of(self.table.fullname, str(self._id), patient, hints, lease)

    def _leases(self) -> Column[Any]:
        assert self._grants is not None, "asked for with a lease only"
        return self._grants

    def _step(
        self,
        condition: ColumnElement[bool],
        *values: tuple[Column[Any], object],
        reason: str,
    ) -> Update:
        change = update(self.table).where(self._key == self._id, condition)
        return change.ordered_values(*values, (self._reason, check_reason(reason)))

    def _is_read(self) -> ColumnElement[bool]:
        return and_(self._mark == READ_LOCK, self._count > 0)


class _BoundedWaitStatements:
    """The same statements; the server waits a bounded time for a row somebody locked.

    That is set for the statement's transaction: not for one of the user's.
    """

    def __init__(self, words: RowLockStatements, dialect: str) -> None:
        self._words = words
        self._now = DIALECTS[dialect].now
        wait = DIALECTS[dialect].patient(round(LOCK_WAIT * 1000)).condition
        self._conditions = (text(wait),) if wait else ()

    def lock(self, mode: Mode, reason: str) -> Update:
        """RLock or WLock."""
        return self._words.lock(mode, reason).where(*self._conditions)

    def unlock(self, mode: Mode, reason: str) -> Update:
        """RUnlock or WUnlock."""
        return self._words.unlock(mode, reason).where(*self._conditions)

    def look(self) -> Select[Any]:
        """Mark, count and reason."""
        return self._words.look()

    def read(self) -> Select[Any]:
        """Mark, count, reason, grants; and the time there."""
        return self._words.read(self._now)

    def swap(self, old: Sequence[object], new: Sequence[object]) -> Update:
        """Put these there in place of those."""
        return self._words.swap(old, new).where(*self._conditions)


__all__ = ["RowLeaseColumns", "RowLockColumns", "RowLockStatements", "row_lock"]


class RowLockColumns:
    """The three published columns, for a mapped class."""

    lock_mark: Mapped[str] = mapped_column(
        String(9), default=UNLOCK, server_default=UNLOCK
    )
    read_lock_count: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    lock_reason: Mapped[str | None] = mapped_column(Text)


class RowLeaseColumns(RowLockColumns):
    """The same, and the one for leases."""

    lock_grants: Mapped[str | None] = mapped_column(Text)


def row_lock(
    where: AsyncEngine | AsyncSession,
    table: Table | type[Any],
    row_id: object,
    *,
    key: str | None = None,
    mark: str = LOCK_COLUMNS.mark,
    count: str = LOCK_COLUMNS.count,
    reason: str = LOCK_COLUMNS.reason,
    lease: float | None = None,
    grants: str = LOCK_COLUMNS.grants,
) -> RowLock:
    """The lock of one row of that table, or of that mapped class; no I/O.

    ``where``: the engine, or a session of it, whose transaction is left alone. ``key``:
    the column that tells rows apart; the primary key if it is not given. The others are
    the names of the lock's columns. ``lease``: seconds a grant lives unless it is
    renewed, by one more column, ``grants``; None: as published, for ever.

    Raises:
        ConfigurationError: no such column, a key that the table does not call unique,
            not in an asyncio loop, no such engine.
    """
    engine = where.bind if isinstance(where, AsyncSession) else where
    if not isinstance(engine, AsyncEngine) or engine.dialect.name not in DIALECTS:
        raise ConfigurationError(
            what=f"{type(where).__name__} cannot be used",
            hint=f"an AsyncEngine, or a session of one, for {', '.join(DIALECTS)}",
        )
    check_seconds("lease", lease, least=MIN_LEASE)
    names = {"mark": mark, "count": count, "reason": reason}
    if lease is not None:
        names["grants"] = grants
    words = RowLockStatements(table, row_id, key=key, **names)
    return RowLock(_manager(engine), words.row(engine.dialect.name, lease))


_MANAGERS: RowLockManagers[Statement] = RowLockManagers()
_KNOWN: weakref.WeakKeyDictionary[Any, set[RowIdentity]] = weakref.WeakKeyDictionary()
"""Kinds of rows, by engine."""


def _manager(engine: AsyncEngine) -> RowLockManager[Statement]:
    there = engine.sync_engine
    known = _KNOWN.setdefault(there, set())
    try:
        return _MANAGERS.desk(id(there), known, partial(EnginePlanRunner, engine))
    except RuntimeError:
        raise ConfigurationError(
            what="an engine of SQLAlchemy is used in an asyncio loop",
            hint="under trio: connect('postgresql://…').row_lock(…)",
        ) from None
