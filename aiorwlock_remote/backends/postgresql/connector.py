"""How asyncpg connects, and ends a connection."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import (
    DRIVER,
    Connection,
    InterfaceError,
    PostgresError,
)
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.cas.driver.runner import DriverHooks

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
        terminate(connection)


def own_lines(options: Options, most: int) -> ConnectionPool[Connection]:
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


def terminate(connection: Connection) -> None:
    """End it without a word, and what waits for it."""
    with suppress(InterfaceError):  # gone, and known to be
        connection.terminate()


# asyncpg's own way to end a call, a request to cancel over a second connection, may not
# be heard by a silent server either.
CUSTOM: DriverHooks[Connection] = DriverHooks(
    is_healthy=healthy,
    abort=terminate,
    is_broken=errors.spoilt,
    map_error=errors.from_driver,
    not_connected=errors.of_connecting,
)
