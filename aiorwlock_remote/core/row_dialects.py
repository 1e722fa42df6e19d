"""SQL dialects of the statements of a row lock."""

from __future__ import annotations

from aiorwlock_remote.core.value import replace, value


@value
class Dialect:
    """How SQL of one database writes names and parameters, and adds the lock's columns.

    Attributes:
        quote: The quote character around names.
        bind: Format of a parameter, by its number from 1.
        alters: Statements that add the columns for mark, count and reason to a table.
        leases: The statement that adds the column for leases.
        now: Expression of the server's time: Unix time in microseconds, or UTC as text.
        grant: The statement that gives a user the rights that a lock needs.
        capitals: Whether lower-case names must be quoted in upper case (Oracle).
        uuids: Whether the driver takes UUID objects; otherwise they are passed as text.
        condition: A condition that is always true, evaluated for its side effect.
        freed: End of an UPDATE that may free the row: notifies tasks that wait for it.
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
        """Return the dialect in which no statement waits longer than this for a row.

        Only PostgreSQL has such a limit; other dialects are returned unchanged.
        """
        if self is not POSTGRESQL:
            return self
        # A statement that waits for a row goes on waiting after its client has hung up,
        # and would then lock the row for a client that is gone. ``set_config`` is
        # evaluated before that wait, and holds until the end of the transaction.
        condition = f"set_config('lock_timeout', '{milliseconds}', true) IS NOT NULL"
        return replace(self, condition=condition)

    def quoted(self, name: str) -> str:
        if self.capitals and name == name.lower():
            name = name.upper()
        return f"{self.quote}{name}{self.quote}"


# Begins ``Dialect.freed``. A statement cut off before it wakes no task.
WAKES = " RETURNING "
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
    # A waiting client has a shared advisory lock on these two numbers. ``NOTIFY`` locks
    # the server while its transaction commits, so it is sent only to waiting clients.
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
# In double quotes SQLite would take the name of a missing column for a text.
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
# Dialects by the names SQLAlchemy and Django use.
DIALECTS = {
    "mariadb": MARIADB,
    "mysql": MARIADB,
    "oracle": ORACLE,
    "postgresql": POSTGRESQL,
    "sqlite": SQLITE,
}
