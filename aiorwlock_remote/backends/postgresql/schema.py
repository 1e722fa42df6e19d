"""Checks whether the tables are fit for locks, and what creates them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.errors import Unsupported

_TEXT = {"character varying", "text"}
_TIME = {"timestamp with time zone"}
_TABLES: dict[str, dict[str, set[str]]] = {
    "mutex_locks": {
        "resource_type": _TEXT,
        "resource_id": {"integer"},
        "ticket": _TEXT,
        "acquired_at": _TIME,
    },
    "doormans": {
        "resource_type": _TEXT,
        "resource_id": {"integer"},
        "active_readers": _TEXT,
        "has_pending_writer": {"boolean"},
        "pending_writer": _TEXT,
        "updated_at": _TIME,
        "created_at": _TIME,
        "version": _TEXT,
        "record": _TEXT,
    },
}
_SCHEMA_HINT = "if they are not in the first schema of the search_path: ?schema=…"
_ADDED_COLUMNS = {"version": "varchar", "record": "text"}


def check_tables(
    columns: Iterable[tuple[str, str, str]],
    keyless: Container[str],
    schema: str,
    where: str,
) -> None:
    """Check the columns and keys of both tables.

    Args:
        columns: Table, name and type of each column.
        keyless: Tables without a unique key of a resource's two columns.
        schema: Schema of the tables, or empty.
        where: The server, for error messages.

    Raises:
        Unsupported: A table, key or column is missing or of another type. The hint is
            the statement to run.
    """
    found: dict[str, dict[str, str]] = {}
    for table, column, data_type in columns:
        found.setdefault(table, {})[column] = data_type
    for table, wanted in _TABLES.items():
        name = f"{schema}." * bool(schema) + table
        if table not in found:
            raise Unsupported(
                what=f"{where}: table {name} does not exist, or is not visible",
                hint=SCHEMA if schema else f"{SCHEMA}; {_SCHEMA_HINT}",
            )
        if table in keyless:
            raise Unsupported(
                what=f"{where}: {name} may have several rows for one resource",
                hint=f"ALTER TABLE {name} ADD UNIQUE (resource_type, resource_id)",
            )
        for column, kinds in wanted.items():
            kind = found[table].get(column)
            if kind is None and column in _ADDED_COLUMNS:
                add = f"ALTER TABLE {name} ADD COLUMN {column} {_ADDED_COLUMNS[column]}"
                what = f"{where}: {name} has no column {column}"
                raise Unsupported(what=what, hint=add)
            if kind not in kinds:
                said = "does not exist" if kind is None else f"is {kind}"
                raise Unsupported(
                    what=f"{where}: {name}.{column} {said}, not {min(kinds)}",
                    hint=SCHEMA,
                )


def statements_of(schema: str = "", user: str = "") -> Iterator[str]:
    """Yield what creates the tables and grants ``user`` the rights it needs."""
    yield statement("schema_locks", schema)
    yield statement("schema_doormans", schema)
    if user:
        owner = f'"{schema}".' if schema else ""
        if schema:
            yield f'GRANT USAGE ON SCHEMA "{schema}" TO "{user}"'
        for table in _TABLES:
            yield (
                f'GRANT SELECT, INSERT, UPDATE, DELETE ON {owner}{table} TO "{user}"'
            )
