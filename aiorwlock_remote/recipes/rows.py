"""The row locks of one ``Locks``."""

from __future__ import annotations

from functools import partial

from aiorwlock_remote.core.row import RowKey, RowTable
from aiorwlock_remote.core.row_plans import Statement
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports.recipes import HoldsRows, TellsOfRows
from aiorwlock_remote.recipes.row_desk import RowDesk
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.sql import Texts
from aiorwlock_remote.recipes.row_lock.target import Row


class Rows:
    """Over the tables that its store can reach."""

    def __init__(self, session: Session, store: HoldsRows) -> None:
        """None yet."""
        self._dialect = store.dialect
        self._tells = store if isinstance(store, TellsOfRows) else None
        self._desk: RowDesk[Statement] = RowDesk(store, session.host, session.check)

    def lock(self, table: RowTable, key: RowKey, lease: float | None) -> RowLock:
        """That row's."""
        texts = Texts(table, key, self._dialect)
        tells, watch = self._tells, None
        if tells is not None:
            watch = partial(tells.watch_row, texts.table, str(key))
        row = Row.of(table.name, str(key), texts, texts, lease, watch)
        return RowLock(self._desk, row)

    def close(self) -> None:
        """Give all of them back."""
        self._desk.close()

    async def over(self) -> None:
        """Wait until that is done; after ``close``."""
        await self._desk.over()
