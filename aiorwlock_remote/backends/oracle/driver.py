"""Adapters of python-oracledb: its connections, its calls and its pool.

Everything that we use of its incomplete types is in this module and ``errors.py``. What
the comments say of python-oracledb 26.1 was found by ``test_hazards.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import oracledb

from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.errors import Error, Failure
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.backends.oracle.schema import statements_of
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    ReturnMode,
    pool_over,
)
from aiorwlock_remote.cas.driver.pool import (
    CLOSE_TIMEOUT,
    ConnectionSource,
    Driver,
    PooledRunner,
    ignore_result,
    in_time,
    no_answer,
)

# An ``AsyncConnection``.
Connection = Any

ORACLEDB: Any = oracledb
NUMBER: Any = ORACLEDB.DB_TYPE_NUMBER

CANCEL_GRACE = 0.1
T = TypeVar("T")


class Pool(Protocol):
    """The part of python-oracledb's ``AsyncConnectionPool`` that this package uses."""

    @property
    def max(self) -> int: ...

    def acquire(self) -> Any: ...  # noqa: ANN401 - a connection, awaited or entered

    async def release(self, connection: Any) -> None: ...  # noqa: ANN401

    async def drop(self, connection: Any) -> None: ...  # noqa: ANN401


class OracleDriver(Driver[Connection]):
    """Opens and uses connections of python-oracledb in thin mode, as asyncio needs."""

    package = "oracledb"
    pool_hint = (
        "OracleBackend(oracledb.create_pool_async(…)), or SQLAlchemy's "
        "create_async_engine('oracle+oracledb://…')"
    )
    # Set once, so a narrower type is safe.
    options: Options  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._tls = options.tls_context()
        self._call_timeouts: dict[Connection, int] = {}
        self.service_known: bool = False
        """Whether a request was answered before, see ``errors.from_connecting``."""

    async def connect(self) -> Connection:
        # The driver has no time limit for the login; ``ConnectionPool`` has one.
        options, tls = self.options, self.options.tls
        connection: Connection = await ORACLEDB.connect_async(
            user=options.username,
            password=options.password,
            host=options.host,
            port=options.port,
            protocol="tcp" if tls is None else "tcps",
            ssl_context=self._tls,
            ssl_server_dn_match=tls is not None and tls.verify == "yes",
            service_name=options.service,
            tcp_connect_timeout=options.connect_timeout,
            retry_count=0,
        )
        return connection

    async def close(self, connection: Connection) -> None:
        await connection.close()

    def abort(self, connection: Connection) -> None:
        with suppress(Error):  # it has ended before
            connection.terminate()

    def is_healthy(self, connection: Connection) -> bool:
        healthy: bool = connection.is_healthy()
        return healthy

    def map_error(self, error: BaseException) -> Failure:
        return errors.from_driver(error, self.options.where)

    def map_connect_error(self, error: BaseException) -> Failure:
        where, known = self.options.where, self.service_known
        return errors.from_connecting(error, where, known=known)

    # The driver's own ``call_timeout`` is not used: with it the process dies (a
    # segmentation fault) when an answer and the end of the connection come while the
    # loop is busy. A pool of the user's may have set it.
    def borrowed(self, connection: Connection) -> None:
        self._call_timeouts[connection] = connection.call_timeout
        connection.call_timeout = 0

    def returning(self, connection: Connection, *, usable: bool) -> None:
        milliseconds = self._call_timeouts.pop(connection)
        # A limit set on a broken connection ends the process in its next call, the one
        # that closes it (test_a_killed_session_is_replaced).
        if usable:
            connection.call_timeout = milliseconds

    def schema_statements(self) -> Iterable[str]:
        return statements_of(self.options.schema)

    async def execute(self, statement: str, connection: Connection) -> None:
        try:
            with connection.cursor() as cursor:
                await cursor.execute(statement, {})
        except Error as exc:
            # Before 23ai there is no CREATE TABLE IF NOT EXISTS.
            if errors.code_of(exc) != errors.EXISTS_ALREADY:
                raise

    def runner(self, source: ConnectionSource[Connection]) -> OracleRunner:
        return OracleRunner(source, self)

    def lend(self, given: object) -> ExternalPool[Connection]:
        return pool_over(given, self, (ORACLEDB.AsyncConnectionPool, OracledbPool))


# The timer of ``PooledRunner`` will not do: ``terminate()`` under a call does not end
# it for sure. Over TLS the call waits for the peer's goodbye, half a minute at a silent
# server. And the process dies (a segmentation fault) if a part of the answer has come
# that is not read yet. A task can be waited for, and given up.
class OracleRunner(PooledRunner[Connection]):
    """Runs each request in a task; aborts the connection of a request that hangs."""

    def __init__(
        self, source: ConnectionSource[Connection], driver: OracleDriver
    ) -> None:
        super().__init__(source, driver)
        self._oracle = driver

    async def carry(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            result = await run_call(self._source, work, self._oracle)
        except (Error, OSError) as exc:
            raise self._oracle.map_error(exc) from exc
        self._oracle.service_known = True
        return result


async def run_call(
    source: ConnectionSource[Connection],
    work: Callable[[Connection], Awaitable[T]],
    driver: OracleDriver,
) -> T:
    """Take a connection, run ``work(connection)`` in a task and return its result.

    Raises:
        BackendError, ConfigurationError: No connection was free or could be opened, or
            the call took longer than ``call_timeout``.
        Exception: What ``work`` raises.
    """
    try:
        connection = await source.take()
    except (Error, OSError) as exc:
        raise driver.map_connect_error(exc) from exc
    limit = driver.options.call_timeout
    working = asyncio.ensure_future(_awaited(work, connection))
    try:
        ended = await in_time(working, limit)
        if not ended:
            # Break into the call: the server would go on waiting for a row.
            with suppress(Error):
                connection.cancel()
            ended = await in_time(working, limit + CLOSE_TIMEOUT)
    except BaseException:  # the loop is about to end
        working.add_done_callback(ignore_result)
        source.abandon(connection)
        raise
    if not ended:
        working.add_done_callback(ignore_result)
        # The first cancellation sends a break and waits for its answer, for ever if the
        # server is silent. The second one leaves an answer behind that the next call
        # would get: so no call is cancelled but one whose connection goes as well.
        for _ in range(2):
            working.cancel()
            ended = await in_time(working, CANCEL_GRACE)
        if ended:
            await source.drop(connection)
        else:
            source.abandon(connection)
        raise no_answer(driver.options)
    error = working.exception()
    if error is not None:
        await source.drop(connection)
        raise error
    await source.give_back(connection)
    return working.result()


async def _awaited(work: Callable[[Connection], Awaitable[T]], on: Connection) -> T:
    return await work(on)


class OracledbPool:
    """Borrows the connections of a user's python-oracledb pool."""

    return_mode = ReturnMode.AWAITED

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @property
    def most(self) -> int | None:
        return self._pool.max

    async def borrow(self) -> Connection:
        connection: Connection = await self._pool.acquire()
        return connection

    async def give_back(self, connection: Connection) -> None:
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        # While a call is under way this would block the loop.
        with suppress(Error):
            await self._pool.drop(connection)

    def abandon(self, connection: Connection) -> None:
        # The pool counts the connection as busy for good, so this is the last resort
        # (test_terminate_costs_a_pool_a_connection).
        with suppress(Error):
            connection.terminate()
