"""What makes a file one of ours: the tables of the SQLite store, and the mark."""

from __future__ import annotations

from aiorwlock_remote._util.sql_files import load_statements

APPLICATION_ID = 0x72776C6B  # "rwlk", in the file's header


def statements_of_sqlite() -> tuple[str, ...]:
    """To be carried out in an empty file; harmless in one of ours.

    ``connect`` does it by itself.
    """
    made = load_statements("aiorwlock_remote.backends.sqlite", "sqlite.sql")["schema"]
    tables = made.removesuffix(";").split(";\n")
    return (*tables, f"PRAGMA application_id={APPLICATION_ID}")
