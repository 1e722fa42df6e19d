"""All that a worker can open. A new one is a module and a line here."""

from __future__ import annotations

from importlib import import_module

from benchmarks.shared.client import Open

FLOOR = "PostgreSQL floor"
PSYCOPG = "PostgreSQL floor by psycopg"
OURS = "aiorwlock-remote, PostgreSQL"
ROWS = "row lock, PostgreSQL"
ADVISORY = "pg_advisory_lock"
BATON = "NOTIFY floor"
DLOCK = "sqlalchemy-dlock, PostgreSQL"
MARIADB_FLOOR = "MariaDB floor"
MARIADB_OURS = "aiorwlock-remote, MariaDB"
MARIADB_ROWS = "row lock, MariaDB"
GET_LOCK = "GET_LOCK"
MARIADB_DLOCK = "sqlalchemy-dlock, MariaDB"
SQLITE_FLOOR = "SQLite floor"
SQLITE_OURS = "aiorwlock-remote, SQLite"

POSTGRESQL = (FLOOR, PSYCOPG, OURS, ROWS, ADVISORY, DLOCK)
MARIADB = (MARIADB_FLOOR, MARIADB_OURS, MARIADB_ROWS, GET_LOCK, MARIADB_DLOCK)
SQLITE = (SQLITE_FLOOR, SQLITE_OURS)


def opener(name: str) -> Open:
    """How to open it. Only what is measured gets imported."""
    module, attribute = _PLACES[name]
    found: Open = getattr(import_module(f"benchmarks.{module}"), attribute)
    return found


_PLACES = {
    FLOOR: ("sql.adapters.bare_asyncpg", "connect"),
    PSYCOPG: ("sql.adapters.bare_psycopg", "connect"),
    ADVISORY: ("sql.adapters.advisory", "connect"),
    BATON: ("sql.adapters.baton", "connect"),
    DLOCK: ("sql.adapters.dlock", "connect"),
    OURS: ("shared.ours", "connect"),
    ROWS: ("sql.adapters.rows", "open_rows"),
    MARIADB_ROWS: ("sql.adapters.rows", "open_rows"),
    MARIADB_FLOOR: ("sql.adapters.bare_asyncmy", "connect"),
    GET_LOCK: ("sql.adapters.get_lock", "connect"),
    MARIADB_DLOCK: ("sql.adapters.dlock", "connect"),
    MARIADB_OURS: ("shared.ours", "connect"),
    SQLITE_FLOOR: ("sql.adapters.bare_sqlite", "connect"),
    SQLITE_OURS: ("shared.ours", "connect"),
}
