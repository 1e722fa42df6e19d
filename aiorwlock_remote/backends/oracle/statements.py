"""Reads ``statements.sql``: one statement a name, kept out of the code."""

from __future__ import annotations

from aiorwlock_remote.texts import statements

SCHEMA = ("schema_locks", "schema_doormans")


def _all() -> dict[str, str]:
    return statements("aiorwlock_remote.backends.oracle", "statements.sql")


def statement(name: str, schema: str = "") -> str:
    """The statement of that name, for the tables of an owner, or one's own."""
    return _all()[name].replace("{schema}", f"{schema}." if schema else "")


def names() -> list[str]:
    """All there are."""
    return list(_all())
