"""Checks whether the tables are fit for locks, and what creates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from aiorwlock_remote.backends.oracle.options import SCHEMA
from aiorwlock_remote.backends.oracle.statements import statement
from aiorwlock_remote.errors import ConfigurationError, Unsupported

_LOCKS = {
    "RESOURCE_TYPE": "VARCHAR2",
    "RESOURCE_ID": "NUMBER",
    "TICKET": "VARCHAR2",
    "ACQUIRED_AT": "TIMESTAMP(6)",
}
_DOORMANS = {
    "RESOURCE_TYPE": "VARCHAR2",
    "RESOURCE_ID": "NUMBER",
    "ACTIVE_READERS": "VARCHAR2",
    "HAS_PENDING_WRITER": "NUMBER",
    "PENDING_WRITER": "VARCHAR2",
    "UPDATED_AT": "TIMESTAMP(6)",
    "CREATED_AT": "TIMESTAMP(6)",
    "VERSION": "VARCHAR2",
    "RECORD": "CLOB",
}
_ADDED_COLUMNS = {"VERSION": "VARCHAR2(32)", "RECORD": "CLOB"}
_TABLES = {"MUTEX_LOCKS": _LOCKS, "DOORMANS": _DOORMANS}
_WIDE = {
    "RESOURCE_TYPE": "VARCHAR2(512 CHAR)",
    "TICKET": "VARCHAR2(64 CHAR)",
    "PENDING_WRITER": "VARCHAR2(400 CHAR)",
    "ACTIVE_READERS": "VARCHAR2(4000)",
}

Row = tuple[Any, ...]


def check_tables(columns: Iterable[Row], schema: str, where: str) -> None:
    """Check the columns of both tables.

    Args:
        columns: Table, name, type and length, as in ``all_tab_columns``.
        schema: Owner of the tables, or empty.
        where: The server, for error messages.

    Raises:
        ConfigurationError: A CHAR column, whose values are padded. The hint is the
            statement that changes it.
        Unsupported: A table or column is missing or of another type. The hint is the
            statement to run.
    """
    found: dict[str, dict[str, str]] = {}
    for table, column, kind, _ in columns:
        found.setdefault(table, {})[column] = kind
    for table, wanted in _TABLES.items():
        name = f"{schema}." * bool(schema) + table.lower()
        if table not in found:
            raise Unsupported(
                what=f"{where}: table {name} does not exist, or is not visible",
                hint=SCHEMA,
            )
        for column, kind in wanted.items():
            _check_column(name, column, kind, found[table].get(column), where)


def _check_column(
    table: str, column: str, wanted: str, kind: str | None, where: str
) -> None:
    if kind in ("CHAR", "NCHAR") and wanted == "VARCHAR2":
        raise ConfigurationError(
            what=f"{where}: {table}.{column.lower()} is {kind}, which pads its values",
            hint=f"ALTER TABLE {table} MODIFY ({column.lower()} {_WIDE[column]}), "
            "then RTRIM what is in it",
        )
    if kind is None:
        ours = _ADDED_COLUMNS.get(column)
        raise Unsupported(
            what=f"{where}: {table} has no column {column.lower()}",
            hint=f"ALTER TABLE {table} ADD ({column.lower()} {ours})"
            if ours
            else SCHEMA,
        )
    if kind != wanted:
        raise Unsupported(
            what=f"{where}: {table}.{column.lower()} is {kind}, not {wanted}",
            hint=SCHEMA,
        )


def statements_of(schema: str = "", user: str = "") -> Iterator[str]:
    """Yield what creates the tables and grants ``user`` the rights it needs."""
    yield statement("schema_locks", schema)
    yield statement("schema_doormans", schema)
    if user:
        for table in _TABLES:
            name = f"{schema}." * bool(schema) + table.lower()
            yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {user}"
