"""The peers on SQL databases. A new one is a module and a line here."""

from __future__ import annotations

from benchmarks.harness.lock import Open, peer_at

FLOOR = "PostgreSQL floor"
PSYCOPG = "PostgreSQL floor by psycopg"
OURS = "aiorwlock-remote, PostgreSQL"
ROWS = "row lock, PostgreSQL"
ADVISORY = "pg_advisory_lock"
NOTIFY = "NOTIFY floor"
DLOCK = "sqlalchemy-dlock, PostgreSQL"
MARIADB_FLOOR = "MariaDB floor"
MARIADB_OURS = "aiorwlock-remote, MariaDB"
MARIADB_WOKEN = "aiorwlock-remote, MariaDB woken over Redis"
MARIADB_ROWS = "row lock, MariaDB"
GET_LOCK = "GET_LOCK"
MARIADB_DLOCK = "sqlalchemy-dlock, MariaDB"
MYSQL_FLOOR = "MySQL floor"
MYSQL_OURS = "aiorwlock-remote, MySQL"
MYSQL_ROWS = "row lock, MySQL"
MYSQL_GET_LOCK = "GET_LOCK, MySQL"
SQLITE_FLOOR = "SQLite floor"
SQLITE_OURS = "aiorwlock-remote, SQLite"

POSTGRESQL = (FLOOR, PSYCOPG, OURS, ROWS, ADVISORY, DLOCK)
MARIADB = (MARIADB_FLOOR, MARIADB_OURS, MARIADB_ROWS, GET_LOCK, MARIADB_DLOCK)
MYSQL = (MYSQL_FLOOR, MYSQL_OURS, MYSQL_ROWS, MYSQL_GET_LOCK)
SQLITE = (SQLITE_FLOOR, SQLITE_OURS)

_PLACES = {
    FLOOR: ("sql.adapters.by_asyncpg", "connect_floor"),
    PSYCOPG: ("sql.adapters.by_psycopg", "connect_floor"),
    ADVISORY: ("sql.adapters.by_asyncpg", "connect_advisory"),
    NOTIFY: ("sql.adapters.by_asyncpg", "connect_notify"),
    DLOCK: ("sql.adapters.dlock", "connect"),
    OURS: ("harness.ours", "connect"),
    ROWS: ("sql.adapters.rows", "connect"),
    MARIADB_ROWS: ("sql.adapters.rows", "connect"),
    MARIADB_FLOOR: ("sql.adapters.by_asyncmy", "connect_floor"),
    GET_LOCK: ("sql.adapters.by_asyncmy", "connect_get_lock"),
    MARIADB_DLOCK: ("sql.adapters.dlock", "connect"),
    MARIADB_OURS: ("harness.ours", "connect"),
    MARIADB_WOKEN: ("harness.ours", "connect"),
    MYSQL_FLOOR: ("sql.adapters.by_asyncmy", "connect_floor"),
    MYSQL_OURS: ("harness.ours", "connect"),
    MYSQL_ROWS: ("sql.adapters.rows", "connect"),
    MYSQL_GET_LOCK: ("sql.adapters.by_asyncmy", "connect_get_lock"),
    SQLITE_FLOOR: ("sql.adapters.by_sqlite3", "connect_floor"),
    SQLITE_OURS: ("harness.ours", "connect"),
}


def opener(name: str) -> Open:
    """Return what opens a peer; only the module of that peer is imported."""
    module, attribute = _PLACES[name]
    return peer_at(module, attribute)
