"""Reads ``load_statements.cql``: one statement a name, kept out of the code."""

from __future__ import annotations

from aiorwlock_remote._util.sql_files import load_statements
from aiorwlock_remote.backends.cassandra.options import Options


def _all() -> dict[str, str]:
    return load_statements("aiorwlock_remote.backends.cassandra", "statements.cql")


def statement(name: str, options: Options) -> str:
    """The statement of that name, for the table the options name."""
    return text_of(name, options.quoted)


def text_of(name: str, table: str) -> str:
    """The statement of that name, for a table as it stands in CQL."""
    return _all()[name].replace("{table}", table)
