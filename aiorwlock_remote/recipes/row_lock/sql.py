"""The published statements as SQL, for drivers; see ``row.sql``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final
from uuid import UUID

from aiorwlock_remote._util.sql_files import load_statements
from aiorwlock_remote.core.row import RowKey, RowTable, parts_of
from aiorwlock_remote.core.row_dialects import Dialect
from aiorwlock_remote.core.row_plans import Statement
from aiorwlock_remote.core.ticket import Mode


@final
class RowSql:
    """The published statements for one row, as SQL."""

    def __init__(self, table: RowTable, key: RowKey, dialect: Dialect) -> None:
        """``dialect``: of the database that carries them out."""
        self._id = str(key) if isinstance(key, UUID) and not dialect.uuids else key
        self.table: str = ".".join(map(dialect.quoted, parts_of(table.name)))
        names = {
            "table": self.table,
            **{
                name: dialect.quoted(getattr(table, name))
                for name in ("key", "mark", "count", "reason", "grants")
            },
            "and_": f" AND {dialect.condition}" if dialect.condition else "",
            "now": dialect.now,
            **{f"b{number}": dialect.bind.format(number) for number in range(1, 9)},
        }
        freed = dialect.freed.format_map(names)
        self._names: Mapping[str, str] = {**names, "freed": freed}
        self._dialect = dialect
        self.grants: str = table.grants
        self.key: str = table.key
        lock = table.mark, table.count, table.reason
        self.columns: tuple[str, ...] = (table.key, *lock)

    def lock(self, mode: Mode, reason: str) -> Statement:
        """RLock or WLock."""
        return Statement(self._text(f"{mode}_lock"), (reason, self._id))

    def unlock(self, mode: Mode, reason: str) -> Statement:
        """RUnlock or WUnlock."""
        return Statement(self._text(f"{mode}_unlock"), (reason, self._id))

    def look(self) -> Statement:
        """Mark, count and reason."""
        return Statement(self._text("look"), (self._id,), tells=True)

    def read(self) -> Statement:
        """Mark, count, reason, grants; and the time there."""
        return Statement(self._text("read"), (self._id,), tells=True)

    def swap(self, old: Sequence[object], new: Sequence[object]) -> Statement:
        """Put these there in place of those."""
        mark, count, _, grants = old
        values = (*new, self._id, mark, count)
        if grants is None:
            return Statement(self._text("swap_first"), values)
        return Statement(self._text("swap"), (*values, grants))

    @property
    def needs(self) -> str:
        """What gives the table its columns."""
        return "; ".join(map(self._named, self._dialect.alters))

    @property
    def leases(self) -> str:
        """What gives the table the column of grants."""
        return self._named(self._dialect.leases)

    @property
    def grant(self) -> str:
        """What gives a user the rights."""
        return self._named(self._dialect.grant)

    @property
    def repair(self) -> str:
        """What makes the row one that nobody holds."""
        return self._text("repair", literal=self._literal())

    @property
    def forget(self) -> str:
        """What makes the row one without grants."""
        return self._text("forget", literal=self._literal())

    @property
    def insert(self) -> str:
        """What makes the row."""
        return self._text("insert")

    def _literal(self) -> str:
        literal = str(self._id)
        if isinstance(self._id, int):
            return literal
        return "'" + literal.replace("'", "''") + "'"

    def _text(self, name: str, **more: str) -> str:
        text = load_statements("aiorwlock_remote.recipes", "row.sql")[name]
        return " ".join(self._named(text, **more).split())

    def _named(self, text: str, **more: str) -> str:
        return text.format_map({**self._names, **more})
