"""How asyncpg connects, and ends a connection.

Connections that a user lends us, of asyncpg's pool or of an engine over it.

And making the tables over them.

Transactions of the user's, over asyncpg.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import (
    DRIVER,
    Connection,
    InterfaceError,
    Pool,
    PostgresError,
)
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.schema import statements_of
from aiorwlock_remote.cas.driver.executor import DriverHooks, run_in_sequence
from aiorwlock_remote.cas.driver.external_pool import (
    BackgroundReturnPool,
    ExternalPool,
    HealthCheckedPool,
    TransactionDriver,
    engine_lender,
    is_engine,
    kind_of,
)
from aiorwlock_remote.cas.driver.pool import ConnectionPool, spawn_detached
from aiorwlock_remote.errors import ConfigurationError

NAME = "aiorwlock_remote"
_SERVER_TIMEOUT_SHARE = 0.8
"""Part of ``call_timeout`` after which the server gives a request up."""
_UNKNOWN_SETTING = "08P01"
"""Of PgBouncer, for what it does not pass on."""


class PostgresqlConnector:
    """For ``ConnectionPool``. Nothing is reset: what we ask for leaves nothing behind.

    Not asyncpg's pool, which wakes the loop several times a request.
    """

    def __init__(self, options: Options) -> None:
        """Where, and how long it may take."""
        self._options = options
        self._setting = True

    async def dial(self) -> Connection:
        """A new connection; the server ends what it is asked a little before we do.

        Then it is known that nothing was done. And a server that waits for a lock does
        not notice that its client has hung up: its sessions would pile up.

        Whatever the role asks for, a statement that has waited for another one goes on
        from what that one has left, and is not refused.
        """
        if self._setting:
            milliseconds = round(
                _SERVER_TIMEOUT_SHARE * 1_000 * self._options.call_timeout
            )
            settings = {
                "statement_timeout": str(milliseconds),
                "default_transaction_isolation": "read committed",
            }
            try:
                return await DRIVER.connect(**connecting(self._options, settings))
            except PostgresError as exc:
                if errors.code_of(exc) != _UNKNOWN_SETTING:
                    raise
                self._setting = False
        return await DRIVER.connect(**connecting(self._options))

    def healthy(self, connection: Connection) -> bool:
        """Whether nothing was heard of its end."""
        return healthy(connection)

    async def close(self, connection: Connection) -> None:
        """Take leave."""
        await connection.close()

    def abort(self, connection: Connection) -> None:
        """Without a word; what waits for it ends."""
        abort(connection)


def own_pool(options: Options, most: int) -> ConnectionPool[Connection]:
    """As many as that at the same time."""
    return ConnectionPool(
        PostgresqlConnector(options), options.where, options.connect_timeout, most
    )


def connecting(
    options: Options, settings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What ``asyncpg.connect`` is to be told. ``settings``: of the session."""
    return {
        "host": options.host,
        "port": options.port,
        "user": options.username or None,
        "password": options.password or None,
        "database": options.database,
        "timeout": options.connect_timeout,
        "ssl": options.tls_context() or "disable",
        "statement_cache_size": 100 if options.statement_cache else 0,
        "server_settings": {"application_name": NAME, **(settings or {})},
    }


def healthy(connection: Connection) -> bool:
    """Whether nothing was heard of its end."""
    return not connection.is_closed()


def abort(connection: Connection) -> None:
    """End it without a word, and what waits for it."""
    with suppress(InterfaceError):  # gone, and known to be
        connection.terminate()


# asyncpg's own way to end a call, a request to cancel over a second connection, may not
# be heard by a silent server either.
CUSTOM: DriverHooks[Connection] = DriverHooks(
    is_healthy=healthy,
    abort=abort,
    is_broken=errors.is_broken,
    map_error=errors.from_driver,
    not_connected=errors.from_connecting,
)


WHERE = "the pool"


class AsyncpgPool:
    """asyncpg's own pool."""

    def __init__(self, pool: Pool) -> None:
        """It is never closed or changed."""
        self._pool = pool

    @property
    def most(self) -> int | None:
        """What the pool was made with."""
        most: int = self._pool.get_max_size()
        return most

    async def borrow(self) -> Connection:
        """What the pool gives."""
        return await self._pool.acquire()

    async def give_back(self, connection: Connection) -> None:
        """The pool resets it."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """The pool opens another one when it needs to."""
        abort(connection)
        await self._pool.release(connection)

    def abandon(self, connection: Connection) -> None:
        """As ``drop``, soon."""
        spawn_detached(self.drop(connection))

    async def settle(self) -> None:
        """They are there already."""


def external_pool_for(given: object) -> ExternalPool[Connection]:
    """What lends connections of this pool or engine.

    Raises:
        ConfigurationError: neither a pool of asyncpg nor an async engine over it.
    """
    if isinstance(given, DRIVER.Pool):
        return BackgroundReturnPool(AsyncpgPool(given), abort)
    if is_engine(given) and given.dialect.driver == "asyncpg":
        return HealthCheckedPool(
            engine_lender(given, abort, _map_engine_error, asks=False), healthy
        )
    raise ConfigurationError(
        what=f"{kind_of(given)} is no pool of asyncpg, nor an async engine over it",
        hint="asyncpg.create_pool(…), create_async_engine('postgresql+asyncpg://…')",
    )


async def create_tables(lender: ExternalPool[Connection], options: Options) -> None:
    """Both, where they are not there.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    works = [
        partial(_run_ddl, statement) for statement in statements_of(options.schema)
    ]
    await run_in_sequence(lender, options, CUSTOM, works)


async def _run_ddl(statement: str, connection: Connection) -> None:
    await connection.execute(statement)


def _map_engine_error(exc: BaseException) -> errors.Failure:
    """SQLAlchemy's errors are made of asyncpg's."""
    return errors.from_connecting(exc.__cause__ or exc, WHERE)


async def _first(connection: Connection, text: str, *values: object) -> object:
    return await connection.fetchrow(text, *values)


def _begun(connection: Connection) -> bool:
    begun: bool = connection.is_in_transaction()
    return begun


ASYNCPG = TransactionDriver(
    connections=(DRIVER.Connection, DRIVER.pool.PoolConnectionProxy),
    driver="asyncpg",
    dialects=("postgresql",),
    first=_first,
    begun=_begun,
    knows=lambda exc: bool(errors.code_of(exc)),
    map_error=errors.from_driver,
    hint="async with connection.transaction(): …",
)
