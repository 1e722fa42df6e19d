"""Reads ``load_statements.sql``: one statement a name, kept out of the code."""

from __future__ import annotations

import math

from aiorwlock_remote._util.statements import load_statements

SCHEMA = ("schema_locks", "schema_doormans")


def _all() -> dict[str, str]:
    return load_statements("aiorwlock_remote.backends.oracle", "statements.sql")


def statement(name: str, schema: str = "", wait: float | None = None) -> str:
    """The statement of that name, for the tables of an owner, or one's own.

    ``wait``: seconds for which a swap waits for a row that is locked; None: no limit.
    The server counts whole seconds.
    """
    text = _all()[name].replace("{schema}", f"{schema}." if schema else "")
    if wait is None:
        return text.replace("{wait}", "")
    return text.replace("{wait}", f" WAIT {math.ceil(wait)}" if wait else " NOWAIT")


def names() -> list[str]:
    """All there are."""
    return list(_all())
