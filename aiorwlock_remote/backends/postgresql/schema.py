"""Checks of existing tables, and the statements that create the tables."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas.driver.schema import TABLES, ExpectedTables, grants
from aiorwlock_remote.errors import Unsupported

_TEXT = "character varying", "text"
_TIME = ("timestamp with time zone",)
_SCHEMA_HINT = "if they are not in the first schema of the search_path: ?schema=…"
_EXPECTED = ExpectedTables(
    types={
        "resource_type": _TEXT,
        "resource_id": ("integer",),
        "ticket": _TEXT,
        "acquired_at": _TIME,
        "active_readers": _TEXT,
        "has_pending_writer": ("boolean",),
        "pending_writer": _TEXT,
        "updated_at": _TIME,
        "created_at": _TIME,
        "version": _TEXT,
        "record": _TEXT,
    },
    added_columns={"version": "varchar", "record": "text"},
    add_column="ADD COLUMN {} {}",
    hint=SCHEMA,
)


def check_tables(
    columns: Iterable[tuple[str, str, str]],
    keyless: Container[str],
    schema: str,
    where: str,
) -> None:
    """Check the columns and keys of the two lock tables.

    Args:
        columns: Table, name and type of each column.
        keyless: Tables that lack a unique key over a resource's two columns.
        schema: Schema of the tables; empty for the first of the search path.
        where: The server, for error messages.

    Raises:
        Unsupported: A table, key or column is missing or unfit; see the hint.
    """
    types: dict[str, dict[str, str]] = {}
    for table, column, data_type in columns:
        types.setdefault(table, {})[column] = data_type
    for table, names in TABLES.items():
        name = f"{schema}." * bool(schema) + table
        hint = SCHEMA if schema else f"{SCHEMA}; {_SCHEMA_HINT}"
        _EXPECTED.check_table(types.get(table), name, where, hint)
        if table in keyless:
            raise Unsupported(
                what=f"{where}: {name} may have several rows for one resource",
                hint=f"ALTER TABLE {name} ADD UNIQUE (resource_type, resource_id)",
            )
        for column in names:
            _EXPECTED.check_column(name, column, types[table].get(column), where)


def statements_of(schema: str = "", user: str = "") -> Iterator[str]:
    """Yield CREATE TABLE for tables in ``schema``, and GRANTs to ``user`` if any."""
    yield statement("schema_locks", schema)
    yield statement("schema_doormans", schema)
    if user and schema:
        yield f'GRANT USAGE ON SCHEMA "{schema}" TO "{user}"'
    if user:
        yield from grants(f'"{schema}".' if schema else "", f'"{user}"')
