"""Checks of the two lock tables that are the same for all SQL databases."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from aiorwlock_remote.errors import Unsupported

ColumnKind = Literal["name", "number", "text", "time", "flag", "record"]
_KEY: dict[str, ColumnKind] = {"resource_type": "name", "resource_id": "number"}
TABLES: dict[str, dict[str, ColumnKind]] = {
    "mutex_locks": {**_KEY, "ticket": "text", "acquired_at": "time"},
    "doormans": {
        **_KEY,
        "active_readers": "text",
        "has_pending_writer": "flag",
        "pending_writer": "text",
        "updated_at": "time",
        "created_at": "time",
        "version": "text",
        "record": "record",
    },
}
"""The columns that each of the two tables must have."""
_KINDS: dict[str, ColumnKind] = TABLES["mutex_locks"] | TABLES["doormans"]


@dataclass(frozen=True)
class ExpectedTables:
    """Value object: the columns that the tables must have in one database product.

    Args:
        types: For each kind of column its permitted types, the preferred one first.
        added_columns: Columns that were added to the tables later, with their types.
        add_column: ``ALTER TABLE`` clause with ``{}`` for the column and for its type.
        hint: What to do about a missing or wrong table, for error messages.
    """

    types: Mapping[ColumnKind, Collection[str]]
    added_columns: Mapping[str, str]
    add_column: str
    hint: str

    def check_table(self, found: object, name: str, where: str, hint: str = "") -> None:
        """Raise ``Unsupported`` if ``found``, the columns of ``name``, is empty."""
        if not found:
            raise Unsupported(
                what=f"{where}: table {name} does not exist, or is not visible",
                hint=hint or self.hint,
            )

    def check_column(self, table: str, name: str, kind: str | None, where: str) -> None:
        """Raise ``Unsupported`` if the column ``name`` is missing or of a wrong type.

        ``kind``: its type in the database, None if it is missing.
        """
        if kind is None:
            hint = self.hint
            if name in self.added_columns:
                add = self.add_column.format(name, self.added_columns[name])
                hint = f"ALTER TABLE {table} {add}"
            raise Unsupported(what=f"{where}: {table} has no column {name}", hint=hint)
        fit = self.types[_KINDS[name]]
        if kind not in fit:
            raise Unsupported(
                what=f"{where}: {table}.{name} is {kind}, not {next(iter(fit))}",
                hint=self.hint,
            )


def grants(owner: str, user: str) -> Iterator[str]:
    """Yield the GRANT statements for the rights that ``user`` needs on both tables.

    Args:
        owner: Schema or database of the tables followed by a dot, or empty.
        user: The user, quoted as SQL demands.
    """
    for table in TABLES:
        yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON {owner}{table} TO {user}"
