"""Adapters of asyncpg: its connections, its pool, and users' transactions over it.

asyncpg has few types; everything that we use of it is in this module and ``errors.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import asyncpg

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.errors import Failure, PostgresError
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.schema import statements_of
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    ReturnMode,
    TransactionDriver,
    pool_over,
)
from aiorwlock_remote.cas.driver.pool import Driver, spawn_detached

# Objects of asyncpg. Where one stands in a signature, its name says which.
Connection = Any
Pool = Any
Row = Any

ASYNCPG: Any = asyncpg
InterfaceError: type[Exception] = asyncpg.InterfaceError

APPLICATION_NAME = "aiorwlock_remote"
SERVER_TIMEOUT_SHARE = 0.8
"""Part of ``call_timeout`` after which the server itself cancels a statement."""
_UNKNOWN_SETTING = "08P01"
"""SQLSTATE with which PgBouncer refuses a setting that it does not pass on."""


class PostgresqlDriver(Driver[Connection]):
    """Opens and uses single connections of asyncpg, without asyncpg's own pool.

    That pool wakes the event loop too often. Connections are not reset between
    requests, because no statement leaves session state.
    """

    package = "asyncpg"
    pool_hint = "asyncpg.create_pool(…), create_async_engine('postgresql+asyncpg://…')"
    # Set once, so a narrower type is safe.
    options: Options  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._pass_settings = True

    async def connect(self) -> Connection:
        if self._pass_settings:
            seconds = SERVER_TIMEOUT_SHARE * self.options.call_timeout
            settings = {
                # The server gives up a little before we do. Then it is known that the
                # statement has changed nothing; and a session that waits for a lock
                # would not notice that its client is gone: they would pile up.
                "statement_timeout": str(round(1_000 * seconds)),
                # Whatever the role is set to: a statement that has waited for another
                # transaction goes on from what that has left, and is not refused.
                "default_transaction_isolation": "read committed",
            }
            try:
                return await ASYNCPG.connect(**self.arguments(settings))
            except PostgresError as exc:
                if errors.code_of(exc) != _UNKNOWN_SETTING:
                    raise
                # For all further connections: each would cost one more attempt.
                self._pass_settings = False
        return await ASYNCPG.connect(**self.arguments())

    def arguments(self, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return ``asyncpg.connect``'s arguments, with the session's ``settings``."""
        options = self.options
        return {
            "host": options.host,
            "port": options.port,
            "user": options.username or None,
            "password": options.password or None,
            "database": options.database,
            "timeout": options.connect_timeout,
            # asyncpg's default would try TLS first, and ask the environment.
            "ssl": options.tls_context() or "disable",
            # Behind PgBouncer each transaction may run in another session, which does
            # not have the statements prepared before (test_pgbouncer.py).
            "statement_cache_size": 100 if options.statement_cache else 0,
            "server_settings": {
                "application_name": APPLICATION_NAME,
                **(settings or {}),
            },
        }

    async def close(self, connection: Connection) -> None:
        await connection.close()

    def abort(self, connection: Connection) -> None:
        # asyncpg's own way to end a call, a request to cancel over a second connection,
        # may not be heard by a silent server either.
        with suppress(InterfaceError):  # it has ended, and asyncpg knows
            connection.terminate()

    def is_healthy(self, connection: Connection) -> bool:
        return not connection.is_closed()

    def is_broken(self, error: BaseException) -> bool:
        return errors.is_broken(error)

    def map_error(self, error: BaseException) -> Failure:
        return errors.from_driver(error, self.options.where)

    def schema_statements(self) -> Iterable[str]:
        return statements_of(self.options.schema)

    async def execute(self, statement: str, connection: Connection) -> None:
        await connection.execute(statement)

    def lend(self, given: object) -> ExternalPool[Connection]:
        own_pool = ASYNCPG.Pool, partial(AsyncpgPool, driver=self)
        return pool_over(given, self, own_pool, engine_resets=False)


class AsyncpgPool:
    """Borrows the connections of a user's asyncpg pool."""

    return_mode = ReturnMode.BACKGROUND

    def __init__(self, pool: Pool, driver: PostgresqlDriver) -> None:
        self._pool = pool
        self._driver = driver

    @property
    def most(self) -> int | None:
        most: int = self._pool.get_max_size()
        return most

    async def borrow(self) -> Connection:
        return await self._pool.acquire()

    async def give_back(self, connection: Connection) -> None:
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        # The pool opens another connection when it needs to.
        self._driver.abort(connection)
        await self._pool.release(connection)

    def abandon(self, connection: Connection) -> None:
        spawn_detached(self.drop(connection))


async def _first_row(connection: Connection, text: str, *values: object) -> object:
    return await connection.fetchrow(text, *values)


TRANSACTIONS = TransactionDriver(
    connections=(ASYNCPG.Connection, ASYNCPG.pool.PoolConnectionProxy),
    package="asyncpg",
    dialects=("postgresql",),
    first_row=_first_row,
    in_transaction=lambda connection: cast("bool", connection.is_in_transaction()),
    is_own=lambda error: bool(errors.code_of(error)),
    map_error=errors.from_driver,
    begin_hint="async with connection.transaction(): …",
)
