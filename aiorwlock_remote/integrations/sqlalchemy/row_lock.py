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
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from sqlalchemy import Integer, String, Table, Text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from aiorwlock_remote.core.lease import MIN_LEASE, check_seconds
from aiorwlock_remote.core.row import UNLOCK
from aiorwlock_remote.core.row_dialects import DIALECTS
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.integrations._row_lock_managers import RowLockManagers
from aiorwlock_remote.integrations.sqlalchemy.plan_runner import (
    EnginePlanRunner,
    Statement,
)
from aiorwlock_remote.integrations.sqlalchemy.row_statements import (
    LOCK_COLUMNS,
    RowLockStatements,
)
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.target import Kind

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
    return RowLock(_desk(engine), words.row(engine.dialect.name, lease))


_DESKS: RowLockManagers[Statement] = RowLockManagers()
_KNOWN: weakref.WeakKeyDictionary[Any, set[Kind]] = weakref.WeakKeyDictionary()
"""Kinds of rows, by engine."""


def _desk(engine: AsyncEngine) -> RowLockManager[Statement]:
    there = engine.sync_engine
    known = _KNOWN.setdefault(there, set())
    try:
        return _DESKS.desk(id(there), known, partial(EnginePlanRunner, engine))
    except RuntimeError:
        raise ConfigurationError(
            what="an engine of SQLAlchemy is used in an asyncio loop",
            hint="under trio: connect('postgresql://…').row_lock(…)",
        ) from None
