"""The SQL and PL/SQL of ``statements.sql``; checks of the tables it is for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.oracle.options import SCHEMA
from aiorwlock_remote.cas.driver.schema import TABLES, ExpectedTables, grants
from aiorwlock_remote.errors import ConfigurationError

_FILE = "aiorwlock_remote.backends.oracle", "statements.sql"
_EXPECTED = ExpectedTables(
    types={
        "name": ("VARCHAR2",),
        "number": ("NUMBER",),
        "text": ("VARCHAR2",),
        "time": ("TIMESTAMP(6)",),
        "flag": ("NUMBER",),
        "record": ("CLOB",),
    },
    added_columns={"version": "VARCHAR2(32)", "record": "CLOB"},
    add_column="ADD ({} {})",
    hint=SCHEMA,
)
_WIDE = {
    "resource_type": "VARCHAR2(512 CHAR)",
    "ticket": "VARCHAR2(64 CHAR)",
    "pending_writer": "VARCHAR2(400 CHAR)",
    "active_readers": "VARCHAR2(4000)",
}
"""Types to propose for columns that an existing table has as CHAR."""


def statement(name: str, schema: str = "", wait: float | None = None) -> str:
    """Return the statement ``name`` of ``statements.sql`` for tables of ``schema``.

    ``wait``: seconds for which a swap waits for a locked row, rounded up to whole
    seconds; 0 does not wait, None sets no limit.
    """
    text = load_statements(*_FILE)[name].replace(
        "{schema}", f"{schema}." if schema else ""
    )
    if wait is None:
        return text.replace("{wait}", "")
    return text.replace("{wait}", f" WAIT {math.ceil(wait)}" if wait else " NOWAIT")


def check_tables(columns: Iterable[tuple[Any, ...]], schema: str, where: str) -> None:
    """Check the columns of the two lock tables.

    Args:
        columns: Table, name, type and length, as in ``all_tab_columns``.
        schema: Owner of the tables; empty for the user of the connection.
        where: The server, for error messages.

    Raises:
        ConfigurationError: A column is CHAR, whose values are padded. The hint is the
            SQL statement that changes the column.
        Unsupported: A table or column is missing or unfit; see the hint.
    """
    types: dict[str, dict[str, str]] = {}
    for table, column, data_type, _ in columns:
        types.setdefault(table.lower(), {})[column.lower()] = data_type
    for table, names in TABLES.items():
        name = f"{schema}." * bool(schema) + table
        _EXPECTED.check_table(types.get(table), name, where)
        for column in names:
            kind = types[table].get(column)
            if kind in ("CHAR", "NCHAR") and column in _WIDE:
                raise ConfigurationError(
                    what=f"{where}: {name}.{column} is {kind}, which pads its values",
                    hint=f"ALTER TABLE {name} MODIFY ({column} {_WIDE[column]}), "
                    "then RTRIM what is in it",
                )
            _EXPECTED.check_column(name, column, kind, where)


def statements_of(schema: str = "", user: str = "") -> Iterator[str]:
    """Yield CREATE TABLE for the owner ``schema``, and GRANTs to ``user`` if any."""
    yield statement("schema_locks", schema)
    yield statement("schema_doormans", schema)
    if user:
        yield from grants(f"{schema}." if schema else "", user)
