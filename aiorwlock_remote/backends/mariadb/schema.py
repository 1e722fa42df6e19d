"""Checks of existing tables, and the statements that create the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from aiorwlock_remote.backends.mariadb.dialect import ServerDialect
from aiorwlock_remote.backends.mariadb.statements import schema_statement
from aiorwlock_remote.cas.driver.schema import (
    TABLES,
    ColumnKind,
    ExpectedTables,
    grants,
)
from aiorwlock_remote.errors import Unsupported

KEY = ["resource_id", "resource_type"]
_TYPES: dict[ColumnKind, tuple[str, ...]] = {
    "name": ("varchar",),
    "number": ("int",),
    "text": ("longtext", "mediumtext", "text", "varchar"),
    "time": ("datetime",),
    "flag": ("tinyint",),
    "record": ("longtext", "mediumtext"),
}
_EXACT = {"resource_type", "ticket"}
"""Columns whose texts must be equal only if they are the same, byte by byte."""


class _Column(NamedTuple):
    table: str
    engine: str | None
    name: str
    kind: str
    collation: str | None
    digits: int | None


def check_tables(
    columns: Iterable[tuple[Any, ...]],
    keys: Iterable[tuple[Any, ...]],
    where: str,
    dialect: ServerDialect,
) -> None:
    """Check the columns and unique keys of the two lock tables.

    Args:
        columns: Result rows of the statement ``columns`` in ``statements.sql``.
        keys: Result rows of the statement ``keys``.
        where: The server, for error messages.
        dialect: The server's dialect.

    Raises:
        Unsupported: A table, key or column is missing or unfit; see the hint.
    """
    found: dict[str, dict[str, _Column]] = {}
    for column in (_Column(*row) for row in columns):
        found.setdefault(column.table, {})[column.name] = column
    unique = _unique_keys(keys)
    expected = ExpectedTables(
        types=_TYPES,
        added_columns={"version": "varchar(32)", "record": "mediumtext"},
        add_column="ADD COLUMN {} {}",
        hint=dialect.schema_hint,
    )
    for table, names in TABLES.items():
        expected.check_table(found.get(table), table, where)
        engine = next(iter(found[table].values())).engine
        if engine is None:
            raise Unsupported(
                what=f"{where}: {table} is a view, which cannot be locked row by row",
                hint="rename it, or name the database of the table itself; "
                f"{dialect.schema_hint}",
            )
        if engine != "InnoDB":
            raise Unsupported(
                what=f"{where}: {table} is {engine}, which has no transactions",
                hint=f"ALTER TABLE {table} ENGINE = InnoDB",
            )
        if (table, KEY) not in unique:
            raise Unsupported(
                what=f"{where}: {table} may have several rows for one resource",
                hint=f"ALTER TABLE {table} ADD PRIMARY KEY (resource_type, "
                "resource_id)",
            )
        for name in names:
            known = found[table].get(name)
            expected.check_column(table, name, known and known.kind, where)
            if known is not None:
                _check_column(known, where, dialect.collation)


def _check_column(column: _Column, where: str, collation: str) -> None:
    name = f"{column.table}.{column.name}"
    modify = f"ALTER TABLE {column.table} MODIFY {column.name}"
    if column.name in _EXACT and column.collation != collation:
        raise Unsupported(
            what=f"{where}: {name} is {column.collation}, in which different names may "
            "be equal",
            hint=f"{modify} varchar(512) CHARACTER SET utf8mb4 COLLATE {collation} "
            "NOT NULL",
        )
    if column.kind == "datetime" and column.digits != 6:
        raise Unsupported(
            what=f"{where}: {name} has no microseconds",
            hint=f"{modify} datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))",
        )


def _unique_keys(keys: Iterable[tuple[Any, ...]]) -> list[tuple[str, list[str]]]:
    found: dict[tuple[str, str], list[str]] = {}
    for table, key, column, part in keys:
        # A key of a part of a column does not keep a resource to one row: the column
        # is marked, and so never equal to ours.
        marked = column if part is None else f"{column}…"
        found.setdefault((table, key), []).append(marked)
    return [(table, sorted(columns)) for (table, _), columns in found.items()]


def statements_of(
    dialect: ServerDialect, tables: str = "", user: str = ""
) -> Iterator[str]:
    """Yield CREATE TABLE for the database ``tables``, and GRANTs to ``user`` if any."""
    yield schema_statement("schema_locks", tables, dialect)
    yield schema_statement("schema_doormans", tables, dialect)
    if user:
        yield from grants(f"`{tables}`." if tables else "", f"`{user}`@`%`")
