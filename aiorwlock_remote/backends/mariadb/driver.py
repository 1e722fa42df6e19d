"""Adapters of asyncmy: its connections, its pool, and users' transactions over it.

asyncmy has few types; everything that we use of it is in this module, ``errors.py``
and ``private_parts.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import asyncmy
from asyncmy import connection as connections
from asyncmy import cursors, pool

from aiorwlock_remote.backends.mariadb import errors, private_parts
from aiorwlock_remote.backends.mariadb.dialect import (
    MARIADB,
    MYSQL,
    ServerDialect,
)
from aiorwlock_remote.backends.mariadb.errors import Error, Failure
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.backends.mariadb.schema import statements_of
from aiorwlock_remote.backends.mariadb.statements import COMMIT, ROLLBACK
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    ReturnMode,
    TransactionDriver,
    lock_not_visible,
    pool_over,
)
from aiorwlock_remote.cas.driver.pool import Driver

# Objects of asyncmy. Where one stands in a signature, its name says which.
Connection = Any
Pool = Any
Row = tuple[Any, ...]

ASYNCMY: Any = asyncmy
POOL: type[Any] = pool.Pool
CONNECTION: type[Any] = connections.Connection
_CURSOR: Any = cursors.Cursor

SERVER_TIMEOUT_SHARE = 0.8
"""Part of ``call_timeout`` after which the server itself cancels a statement."""


def _pool_hint(dialect: ServerDialect) -> str:
    return (
        f"{dialect.backend}(await asyncmy.create_pool(…)), or SQLAlchemy's "
        f"create_async_engine('{dialect.scheme}+asyncmy://…')"
    )


class MariadbDriver(Driver[Connection]):
    """Adapter of asyncmy. Every connection has the same session settings."""

    package = "asyncmy"
    pool_hint: ClassVar[str] = _pool_hint(MARIADB)
    dialect: ServerDialect = MARIADB
    # Set once, so a narrower type is safe.
    options: Options  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        # Each connection reads the files again. Bad ones must fail before a thread or a
        # connection is opened (test_tls.py).
        options.tls_context()

    async def connect(self) -> Connection:
        options = self.options
        connection: Connection = await ASYNCMY.connect(
            host=options.host,
            port=options.port,
            unix_socket=options.socket or None,
            database=options.database,
            user=options.username or None,
            password=options.password.encode(),  # asyncmy would encode it as latin-1
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=options.connect_timeout,
            ssl=options.tls_context(),
            program_name="aiorwlock_remote",
        )
        session = self.dialect.session(SERVER_TIMEOUT_SHARE * options.call_timeout)
        try:
            await self._set_up(connection, *session)
        except BaseException:
            # Nothing else would close it (test_startup_errors.py).
            self.abort(connection)
            raise
        return connection

    async def _set_up(self, connection: Connection, *session: str) -> None:
        try:
            await run(connection, *session)
        except Error as exc:
            # Each product lacks a variable that the other one has. The version in the
            # handshake may be that of a proxy.
            if errors.code_of(exc) == errors.UNKNOWN_VARIABLE:
                (result,) = await run(connection, "SELECT VERSION()")
                ((version,),) = result.rows
                self.dialect.check_version(version, self.options.where)
            raise

    async def close(self, connection: Connection) -> None:
        await connection.ensure_closed()

    def abort(self, connection: Connection) -> None:
        private_parts.abort(connection)

    def is_healthy(self, connection: Connection) -> bool:
        return connection.connected and not private_parts.is_broken(connection)

    def is_broken(self, error: BaseException) -> bool:
        return errors.is_unusable(error)

    def map_error(self, error: BaseException) -> Failure:
        return errors.from_driver(error, self.options.where, self.dialect)

    def map_connect_error(self, error: BaseException) -> Failure:
        return errors.from_connecting(error, self.options.where, self.dialect)

    def schema_statements(self) -> Iterable[str]:
        return statements_of(self.dialect, self.options.tables)

    async def execute(self, statement: str, connection: Connection) -> None:
        await run(connection, statement)

    def lend(self, given: object) -> ExternalPool[Connection]:
        return pool_over(given, self, (POOL, partial(AsyncmyPool, driver=self)))


class MysqlDriver(MariadbDriver):
    """Adapter of asyncmy for servers of MySQL."""

    pool_hint: ClassVar[str] = _pool_hint(MYSQL)
    dialect: ServerDialect = MYSQL


class AsyncmyPool:
    """Borrows the connections of a user's asyncmy pool."""

    return_mode = ReturnMode.AWAITED

    def __init__(self, pool: Pool, driver: MariadbDriver) -> None:
        self._pool = pool
        self._driver = driver

    @property
    def most(self) -> int | None:
        most: int = self._pool.maxsize
        return most or None  # 0 is no limit

    async def borrow(self) -> Connection:
        return await self._pool.acquire()

    async def give_back(self, connection: Connection) -> None:
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        self.abandon(connection)

    def abandon(self, connection: Connection) -> None:
        # The pool forgets a connection that is closed, and opens another one when it
        # needs to.
        self._driver.abort(connection)
        self._pool.release(connection)


class MariadbResult(NamedTuple):
    """Result of one statement: number of changed rows, ``LAST_INSERT_ID``, rows."""

    changed: int
    last_id: int
    rows: list[Row]


# What asyncmy says of autocommit is not asked. Whatever ``GLOBAL autocommit`` is, the
# greeting of MySQL says "on", as does each of its answers, and asyncmy sends no SET. A
# step that relies on that is reported as done, and rolled back later: two holders
# (test_autocommit.py).
async def run(connection: Connection, *statements: str) -> list[MariadbResult]:
    """Send statements and ``COMMIT`` as one request; return one result for each.

    The first statement that fails ends the request and raises asyncmy's error; the
    transaction is then rolled back.
    """
    try:
        return (await send(connection, *statements, COMMIT))[:-1]
    except Error as exc:
        await roll_back(connection, exc)
        raise


async def read(connection: Connection, *statements: str) -> list[MariadbResult]:
    """Do as ``run``, for statements that only read.

    With autocommit, which our own sessions have, they need no further statement.
    """
    try:
        results = await send(connection, *statements)
        # What the server says of an open transaction is true.
        if connection.get_transaction_status():
            await send(connection, COMMIT)
    except Error as exc:
        await roll_back(connection, exc)
        raise
    return results


async def send(connection: Connection, *statements: str) -> list[MariadbResult]:
    """Send statements as one request, and leave it to the caller to end it.

    ``statements`` end with ``COMMIT`` if they change anything.
    """
    # A pool may lend a connection with an open transaction, such as that of a handler
    # of SQLAlchemy's "connect" event. No caller has asked to commit that transaction.
    began = connection.get_transaction_status()
    before = [ROLLBACK] if began and statements[0] not in {COMMIT, ROLLBACK} else []
    results: list[MariadbResult] = []
    async with connection.cursor(_CURSOR) as cursor:
        await cursor.execute(";".join((*before, *statements)))
        while True:
            # Most statements have no rows to fetch, only counts.
            rows: list[Row] = (
                list(await cursor.fetchall()) if cursor.description else []
            )
            results.append(MariadbResult(cursor.rowcount, cursor.lastrowid, rows))
            if not await cursor.nextset():
                break
        private_parts.set_status(connection, cursor)
    return results[len(before) :]


async def roll_back(connection: Connection, error: Exception) -> None:
    """End the transaction of a request that failed, unless the connection is broken."""
    if not errors.is_broken(error):
        # If this fails, the connection has ended, and with it the transaction.
        with suppress(Error):
            await send(connection, ROLLBACK)


async def _first_row(connection: Connection, statement: str) -> Row | None:
    async with connection.cursor(_CURSOR) as cursor:
        await cursor.execute(statement)
        row: Row | None = await cursor.fetchone()
        return row


def transactions_of(dialect: ServerDialect) -> TransactionDriver:
    """Return how to lock a row in a user's open transaction at such a server."""

    def map_error(error: BaseException, where: str) -> Failure:
        # Servers before MariaDB 11.6.2 do not raise this error: they find no row.
        if errors.code_of(error) == errors.CHANGED:
            return lock_not_visible()
        return errors.from_driver(error, where, dialect)

    return TransactionDriver(
        connections=(CONNECTION,),
        package="asyncmy",
        # SQLAlchemy's engines for MariaDB are of either.
        dialects=tuple(dict.fromkeys((dialect.scheme, "mysql"))),
        first_row=_first_row,
        in_transaction=lambda connection: cast(
            "bool", connection.get_transaction_status()
        ),
        is_own=lambda error: bool(errors.code_of(error)),
        map_error=map_error,
        begin_hint="await connection.begin()",
    )
