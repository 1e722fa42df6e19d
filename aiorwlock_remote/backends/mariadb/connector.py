"""How asyncmy connects, and ends a connection.

Its own time limit is for the TCP connection only, not for logging in: there is one of
ours.

Connections that a user lends us, of asyncmy's pool or of an engine over it.

And making the tables over them.

Transactions of the user's, over asyncmy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.driver import (
    CONNECTION,
    DRIVER,
    POOL,
    Connection,
    Pool,
    first,
    run,
)
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.backends.mariadb.schema import statements_of
from aiorwlock_remote.backends.mariadb.statements import NO_ROW_LIMIT
from aiorwlock_remote.cas.driver.executor import DriverHooks, run_in_sequence
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    HealthCheckedPool,
    TransactionDriver,
    engine_lender,
    is_engine,
    kind_of,
    lock_not_visible,
)
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.errors import BackendError, ConfigurationError

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
            abort(connection)
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
        abort(connection)


def own_pool(options: Options, most: int) -> ConnectionPool[Connection]:
    """Our own, so many at most."""
    return ConnectionPool(
        MariadbConnector(options), options.where, options.connect_timeout, most
    )


def healthy(connection: Connection) -> bool:
    """Whether the server has not hung up, as far as the driver knows."""
    return connection.connected and not connection._stream_broken  # noqa: SLF001


def abort(connection: Connection) -> None:
    """Asyncmy's ``close`` would wait for a TLS peer to say goodbye, too."""
    transport = connection._transport  # noqa: SLF001 - there is no other way to it
    connection.close()
    if transport is not None:
        transport.abort()


CUSTOM: DriverHooks[Connection] = DriverHooks(
    is_healthy=healthy,
    abort=abort,
    is_broken=errors.is_broken,
    map_error=errors.from_driver,
    not_connected=errors.from_connecting,
)


WHERE = "the pool"


class AsyncmyPool:
    """asyncmy's own pool."""

    def __init__(self, pool: Pool) -> None:
        """It belongs to the running loop."""
        self._pool = pool

    @property
    def most(self) -> int | None:
        """What the pool was made with; 0 is no limit."""
        most: int = self._pool.maxsize
        return most or None

    async def borrow(self) -> Connection:
        """What the pool gives."""
        return await self._pool.acquire()

    async def give_back(self, connection: Connection) -> None:
        """At once."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """As ``abandon``."""
        self.abandon(connection)

    def abandon(self, connection: Connection) -> None:
        """The pool forgets one that is closed, and opens another when it needs to."""
        abort(connection)
        self._pool.release(connection)

    async def settle(self) -> None:
        """They are there already."""


def external_pool_for(given: object) -> ExternalPool[Connection]:
    """What lends connections of this pool or engine.

    Raises:
        ConfigurationError: it is neither, or not over asyncmy.
    """
    if isinstance(given, POOL):
        return HealthCheckedPool(AsyncmyPool(given), healthy)
    if is_engine(given) and given.dialect.driver == "asyncmy":
        meant = partial(errors.from_connecting, where=WHERE)
        return HealthCheckedPool(engine_lender(given, abort, meant), healthy)
    raise ConfigurationError(
        what=f"{kind_of(given)} is not a pool of asyncmy",
        hint="MariadbBackend(await asyncmy.create_pool(…)), or SQLAlchemy's "
        "create_async_engine('mariadb+asyncmy://…')",
    )


async def create_tables(lender: ExternalPool[Connection], options: Options) -> None:
    """Both, where they are not there.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    works = [
        partial(_run_ddl, statement) for statement in statements_of(options.tables)
    ]
    await run_in_sequence(lender, options, CUSTOM, works)


async def _run_ddl(statement: str, connection: Connection) -> None:
    await run(connection, statement)


def _begun(connection: Connection) -> bool:
    begun: bool = connection.get_transaction_status()
    return begun


def _map_join_error(
    exc: BaseException, where: str
) -> BackendError | ConfigurationError:
    # Where the server tells; older ones find no row.
    newer = errors.code_of(exc) == errors.CHANGED
    return lock_not_visible() if newer else errors.from_driver(exc, where)


ASYNCMY = TransactionDriver(
    connections=(CONNECTION,),
    driver="asyncmy",
    dialects=("mariadb", "mysql"),
    first=first,
    begun=_begun,
    knows=lambda exc: bool(errors.code_of(exc)),
    map_error=_map_join_error,
    hint="await connection.begin()",
)
