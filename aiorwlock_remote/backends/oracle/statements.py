"""The SQL and PL/SQL of ``statements.sql``."""

from __future__ import annotations

import math

from aiorwlock_remote._util.statements import load_statements

_FILE = "aiorwlock_remote.backends.oracle", "statements.sql"
SCHEMA = ("schema_locks", "schema_doormans")


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


def names() -> list[str]:
    """Return the names of all statements in ``statements.sql``."""
    return list(load_statements(*_FILE))
