"""Checks whether the tables are fit for locks, and what creates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aiorwlock_remote.backends.mariadb.dialect import MariadbDialect
from aiorwlock_remote.backends.mariadb.options import SCHEMA
from aiorwlock_remote.backends.mariadb.statements import statement
from aiorwlock_remote.errors import Unsupported

KEY = ["resource_id", "resource_type"]
_TEXT = {"varchar", "text", "mediumtext", "longtext"}
_TIME = {"datetime"}
_TABLES: dict[str, dict[str, set[str]]] = {
    "mutex_locks": {
        "resource_type": {"varchar"},
        "resource_id": {"int"},
        "ticket": _TEXT,
        "acquired_at": _TIME,
    },
    "doormans": {
        "resource_type": {"varchar"},
        "resource_id": {"int"},
        "active_readers": _TEXT,
        "has_pending_writer": {"tinyint"},
        "pending_writer": _TEXT,
        "updated_at": _TIME,
        "created_at": _TIME,
        "version": _TEXT,
        "record": {"mediumtext", "longtext"},
    },
}
_EXACT = {"resource_type", "ticket"}
_ADDED_COLUMNS = {"version": "varchar(32)", "record": "mediumtext"}


class _Column:
    def __init__(self, row: tuple[Any, ...]) -> None:
        self.table, self.engine, self.name, self.kind, self.collation, digits = row
        self.digits: int | None = digits


def check_tables(
    columns: Iterable[tuple[Any, ...]],
    keys: Iterable[tuple[Any, ...]],
    where: str,
    dialect: MariadbDialect,
) -> None:
    """Check the columns and unique keys of both tables.

    Args:
        columns: Rows of the statement of that name.
        keys: Rows of the statement of that name.
        where: The server, for error messages.
        dialect: Of the server.

    Raises:
        Unsupported: A table, key or column is missing or unfit. The hint is the
            statement to run.
    """
    found: dict[str, dict[str, _Column]] = {}
    for column in map(_Column, columns):
        found.setdefault(column.table, {})[column.name] = column
    unique = _unique(keys)
    for table, wanted in _TABLES.items():
        if table not in found:
            raise Unsupported(
                what=f"{where}: table {table} does not exist, or is not visible",
                hint=SCHEMA,
            )
        engine = next(iter(found[table].values())).engine
        if engine is None:
            raise Unsupported(
                what=f"{where}: {table} is a view, which cannot be locked row by row",
                hint=f"rename it, or name the database of the table itself; {SCHEMA}",
            )
        if engine != "InnoDB":
            raise Unsupported(
                what=f"{where}: {table} is {engine}, which has no transactions",
                hint=f"ALTER TABLE {table} ENGINE = InnoDB",
            )
        if KEY not in unique.get(table, []):
            raise Unsupported(
                what=f"{where}: {table} may have several rows for one resource",
                hint=f"ALTER TABLE {table} ADD PRIMARY KEY (resource_type, "
                "resource_id)",
            )
        for name, kinds in wanted.items():
            column_found = found[table].get(name)
            _check_column(table, name, kinds, column_found, where, dialect.collation)


def _check_column(
    table: str,
    name: str,
    kinds: set[str],
    column: _Column | None,
    where: str,
    collation: str,
) -> None:
    alter = f"ALTER TABLE {table}"
    if column is None:
        add = (
            f"{alter} ADD COLUMN {name} {_ADDED_COLUMNS[name]}"
            if name in _ADDED_COLUMNS
            else SCHEMA
        )
        raise Unsupported(what=f"{where}: {table} has no column {name}", hint=add)
    if column.kind not in kinds:
        raise Unsupported(
            what=f"{where}: {table}.{name} is {column.kind}, not {min(kinds)}",
            hint=SCHEMA,
        )
    if name in _EXACT and column.collation != collation:
        raise Unsupported(
            what=f"{where}: {table}.{name} is {column.collation}, in which different "
            "names may be equal",
            hint=f"{alter} MODIFY {name} varchar(512) CHARACTER SET utf8mb4 "
            f"COLLATE {collation} NOT NULL",
        )
    if column.kind == "datetime" and column.digits != 6:
        raise Unsupported(
            what=f"{where}: {table}.{name} has no microseconds",
            hint=f"{alter} MODIFY {name} datetime(6) NOT NULL DEFAULT "
            "(UTC_TIMESTAMP(6))",
        )


def _unique(keys: Iterable[tuple[Any, ...]]) -> Mapping[str, list[list[str]]]:
    # A key of a prefix of a column does not keep a resource to one row: its column is
    # marked, and so never equal to ours.
    found: dict[tuple[str, str], list[str]] = {}
    for table, key, column, part in keys:
        whole = part is None
        found.setdefault((table, key), []).append(column if whole else f"{column}…")
    unique: dict[str, list[list[str]]] = {}
    for (table, _), columns in found.items():
        unique.setdefault(table, []).append(sorted(columns))
    return unique


def statements_of(tables: str = "", user: str = "") -> Iterator[str]:
    """Yield what creates the tables and grants ``user`` the rights it needs."""
    yield statement("schema_locks", tables)
    yield statement("schema_doormans", tables)
    if user:
        owner = f"`{tables}`." if tables else ""
        for table in _TABLES:
            yield (
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON {owner}{table} "
                f"TO `{user}`@`%`"
            )
