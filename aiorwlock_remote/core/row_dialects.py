"""How the databases want the statements of a row lock."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a database wants its statements, and which columns it is to be given.

    ``bind``: a parameter, by its number from 1. ``alters``: statements that give a
    table the columns. ``grant``: what gives a user the rights. ``capitals``: a name in
    small letters is one that was made without quotes, and stands there in capitals.
    ``uuids``: the driver takes them as they are. ``condition``: one that is always
    true, for what it does. ``leases``: the statement for the column that leases need.
    ``now``: microseconds of Unix time as a number, or UTC as text, by the server.
    ``freed``: the end of an UPDATE that may free the row: tells those who wait for it.
    """

    quote: str
    bind: str
    alters: tuple[str, ...]
    leases: str
    now: str
    grant: str = "GRANT SELECT, UPDATE ON {table} TO …"
    capitals: bool = False
    uuids: bool = False
    condition: str = ""
    freed: str = ""

    def patient(self, milliseconds: int) -> Dialect:
        """The same; PostgreSQL waits so long at most for a row somebody has locked.

        A statement that waits for a row goes on waiting when its client has hung up,
        and would lock the row for nobody. ``set_config`` is evaluated before that wait,
        and holds until the end of the transaction.
        """
        if self is not POSTGRESQL:
            return self
        condition = f"set_config('lock_timeout', '{milliseconds}', true) IS NOT NULL"
        return replace(self, condition=condition)

    def quoted(self, name: str) -> str:
        """A column or a table, which was checked before."""
        if self.capitals and name == name.lower():
            name = name.upper()
        return f"{self.quote}{name}{self.quote}"


WAKES = " RETURNING "
"""Begins ``Dialect.freed``: without it a statement does the same, and wakes nobody."""
_ROW = (
    "CAST(CAST('{table}' AS regclass) AS oid)::int4, "
    "hashtext('rwlock ' || CAST({key} AS text))"
)
POSTGRESQL = Dialect(
    quote='"',
    bind="${}",
    alters=(
        (
            "ALTER TABLE {table} ADD {mark} varchar(9) NOT NULL DEFAULT 'Unlock', "
            "ADD {count} integer NOT NULL DEFAULT 0, ADD {reason} text"
        ),
    ),
    leases="ALTER TABLE {table} ADD {grants} text",
    now="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    uuids=True,
    # Who waits for a row has a shared lock on these two numbers. `NOTIFY` takes a lock
    # of the whole server while its transaction commits: for those who wait alone.
    freed=(
        f"{WAKES}CASE WHEN {{mark}} = 'Unlock'"
        f" AND NOT pg_try_advisory_xact_lock({_ROW})"
        f" THEN CAST(pg_notify('rwlock_rows', concat_ws(' ', {_ROW})) AS text) END"
    ),
)
MARIADB = Dialect(
    quote="`",
    bind="%s",
    alters=(
        (
            "ALTER TABLE {table} ADD {mark} varchar(9) NOT NULL DEFAULT 'Unlock', "
            "ADD {count} int NOT NULL DEFAULT 0, ADD {reason} text"
        ),
    ),
    leases="ALTER TABLE {table} ADD {grants} text",
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
)
# Double quotes would do, but a name in them that is no column's is taken for a text.
SQLITE = Dialect(
    quote="`",
    bind=":{}",
    alters=(
        "ALTER TABLE {table} ADD {mark} TEXT NOT NULL DEFAULT 'Unlock'",
        "ALTER TABLE {table} ADD {count} INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE {table} ADD {reason} TEXT",
    ),
    leases="ALTER TABLE {table} ADD {grants} TEXT",
    now="CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
)
ORACLE = Dialect(
    quote='"',
    bind=":{}",
    alters=(
        (
            "ALTER TABLE {table} ADD ({mark} VARCHAR2(9) DEFAULT 'Unlock' NOT NULL, "
            "{count} NUMBER(10) DEFAULT 0 NOT NULL, {reason} VARCHAR2(4000))"
        ),
    ),
    leases="ALTER TABLE {table} ADD ({grants} VARCHAR2(4000))",
    now="TO_CHAR(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'YYYY-MM-DD HH24:MI:SS.FF6')",
    capitals=True,
)
DIALECTS = {
    "mariadb": MARIADB,
    "mysql": MARIADB,
    "oracle": ORACLE,
    "postgresql": POSTGRESQL,
    "sqlite": SQLITE,
}
"""By the names that SQLAlchemy and Django have for them."""
