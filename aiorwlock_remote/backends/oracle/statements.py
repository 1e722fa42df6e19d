"""The statements of ``statements.sql``."""

from __future__ import annotations

import math

from aiorwlock_remote._util.statements import load_statements

_FILE = "aiorwlock_remote.backends.oracle", "statements.sql"
SCHEMA = ("schema_locks", "schema_doormans")
"""Names of the statements that create the tables."""


def statement(name: str, schema: str = "", wait: float | None = None) -> str:
    """Return the statement called ``name``.

    Args:
        name: As in ``statements.sql``.
        schema: Owner of the tables, or empty for the user itself.
        wait: Seconds for which a swap waits for a locked row, in which the server
            counts whole seconds; None for no limit.
    """
    text = load_statements(*_FILE)[name].replace(
        "{schema}", f"{schema}." if schema else ""
    )
    if wait is None:
        return text.replace("{wait}", "")
    return text.replace("{wait}", f" WAIT {math.ceil(wait)}" if wait else " NOWAIT")


def names() -> list[str]:
    """Return the names of all statements."""
    return list(load_statements(*_FILE))
