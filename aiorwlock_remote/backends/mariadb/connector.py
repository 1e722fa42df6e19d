"""How asyncmy connects, and ends a connection.

Its own time limit is for the TCP connection only, not for logging in: there is one of
ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.driver import DRIVER, Connection, run
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.backends.mariadb.statements import NO_ROW_LIMIT
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.cas.driver.runner import DriverHooks

# Not what the server is set to, or begins a session with (`init_connect`): a name too
# long must not be cut, reads must not see what is not committed, must see all there is
# and tell it in our characters, and the server must give up a little before we do: then
# it is known that nothing was done.
_SERVER_TIMEOUT_SHARE = 0.8
_SESSION = (
    "SET NAMES utf8mb4",
    (
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES', max_statement_time = {seconds}, "
        f"sql_select_limit = {NO_ROW_LIMIT}, sql_big_selects = ON, "
        "sql_safe_updates = OFF, unique_checks = ON"
    ),
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


@dataclass(frozen=True, slots=True)
class MariadbConnector:
    """asyncmy, as ``ConnectionPool`` uses it."""

    options: Options

    async def dial(self) -> Connection:
        """Log in."""
        options = self.options
        connection: Connection = await DRIVER.connect(
            host=options.host,
            port=options.port,
            unix_socket=options.socket or None,
            database=options.database,
            user=options.username or None,
            password=options.password.encode(),  # asyncmy would take it for latin-1
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=options.connect_timeout,
            ssl=options.tls_context(),
            program_name="aiorwlock_remote",
        )
        seconds = _SERVER_TIMEOUT_SHARE * options.call_timeout
        try:
            await run(connection, *(text.format(seconds=seconds) for text in _SESSION))
        except BaseException:
            hung_up(connection)
            raise
        return connection

    def healthy(self, connection: Connection) -> bool:
        """As far as the driver knows."""
        return healthy(connection)

    async def close(self, connection: Connection) -> None:
        """In order."""
        await connection.ensure_closed()

    def abort(self, connection: Connection) -> None:
        """Without a word."""
        hung_up(connection)


def own_lines(options: Options, most: int) -> ConnectionPool[Connection]:
    """Our own, so many at most."""
    return ConnectionPool(
        MariadbConnector(options), options.where, options.connect_timeout, most
    )


def healthy(connection: Connection) -> bool:
    """Whether the server has not hung up, as far as the driver knows."""
    return connection.connected and not connection._stream_broken  # noqa: SLF001


def hung_up(connection: Connection) -> None:
    """Asyncmy's ``close`` would wait for a TLS peer to say goodbye, too."""
    transport = connection._transport  # noqa: SLF001 - there is no other way to it
    connection.close()
    if transport is not None:
        transport.abort()


CUSTOM: DriverHooks[Connection] = DriverHooks(
    is_healthy=healthy,
    abort=hung_up,
    is_broken=errors.spoilt,
    map_error=errors.from_driver,
    not_connected=errors.of_connecting,
)
