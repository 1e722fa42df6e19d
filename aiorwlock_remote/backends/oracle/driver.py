"""Adapters of python-oracledb: its connections, its pool, and requests over them.

Everything that we use of its incomplete types is in this module and ``errors.py``. What
the comments say of python-oracledb 26.1 was found by ``test_interrupted_calls.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import oracledb

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.errors import Error, Failure
from aiorwlock_remote.backends.oracle.options import SCHEMA, Options
from aiorwlock_remote.backends.oracle.statements import (
    check_tables,
    statement,
    statements_of,
)
from aiorwlock_remote.cas import RowLocked
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import (
    Asked,
    DriverExecutor,
    Outcome,
    Work,
    answer_in_order,
)
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
from aiorwlock_remote.cas.table_cas import (
    MAX_RECORD_BYTES,
    StoredRow,
    Values,
    micros_of,
)
from aiorwlock_remote.core.row import Statement, StatementResult
from aiorwlock_remote.errors import ConfigurationError, Unsupported

# An ``AsyncConnection``.
Connection = Any

ORACLEDB: Any = oracledb
NUMBER: Any = ORACLEDB.DB_TYPE_NUMBER

CANCEL_GRACE = 0.1
MIN_DRIVER = 26
"""Oldest supported major version of python-oracledb."""
MIN_SERVER = 12, 2
ROWS_PER_FETCH = 5000
"""Rows of a query that one round trip fetches."""

# Types and sizes are the same at each call, whatever the values are: the server keeps
# one cursor for them.
_IN: dict[str, Any] = {
    "i_kind": 2000,
    "i_number": NUMBER,
    "i_latest": 26,
    "i_version": 32,
    "i_ticket": 2000,
    "i_since": 26,
    "t_ticket": 2000,
    "t_since": 26,
    "n_version": 32,
    "n_fence": NUMBER,
    "n_record": MAX_RECORD_BYTES,
    "n_readers": 4000,
    "n_waits": NUMBER,
    "n_writer": 2000,
}
_OUT: dict[str, int] = {
    "o_now": 26,
    "o_fence": 19,
    "o_created": 26,
    "o_version": 32,
    "o_record": MAX_RECORD_BYTES,
    "o_ticket": 2000,
    "o_since": 26,
}
_WAS_LOCKED = 2
"""Value of ``o_done`` for a row that another transaction has locked."""
_BAD_MARKS = {"ORA-01722", "ORA-00932"}
"""Codes: the user's column cannot hold a word that a row lock writes there."""

Row = tuple[Any, ...]
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


class OracleExecutor(DriverExecutor):
    """Carries out requests on Oracle, by the PL/SQL blocks of ``statements.sql``.

    Several swaps, or several reads, are sent as one block with a list of bind values.
    That is one round trip, or two if the block is new to the connection. If one of the
    requests fails, the outcome of the others is not known.
    """

    driver: OracleDriver

    async def check_server(self, logged_in: Callable[[], object]) -> None:
        check_driver()
        columns = await self.rows(
            "columns", {"i_owner": self.driver.options.schema or None}
        )
        # Not before: a second login with a bad password may lock the account.
        logged_in()
        check_session({row[4] for row in columns}, self._where)
        check_tables(
            [row[:4] for row in columns], self.driver.options.schema, self._where
        )
        check_version(await self.version(), self._where)

    async def rows(self, name: str, values: Values) -> list[Row]:
        """Run a statement; return its rows, or ``[(number of changed rows,)]``."""
        text = statement(name, self.driver.options.schema)

        async def work(connection: Connection) -> list[Row]:
            with connection.cursor() as cursor:
                cursor.arraysize = ROWS_PER_FETCH
                await cursor.execute(text, dict(values))
                if cursor.description is not None:
                    rows: list[Row] = await cursor.fetchall()
                    return rows
                await connection.commit()
                return [(cursor.rowcount,)]

        return await self.begin(partial(_retried, work))

    async def version(self) -> str:
        """Return the server's version, if the user may change the library's tables.

        Raises ``ConfigurationError`` with the missing right, or the missing table.
        """
        text = statement("swap", self.driver.options.schema)

        async def work(connection: Connection) -> str:
            # To parse the block is to compile it: a missing right shows before the
            # first lock.
            with connection.cursor() as cursor:
                await cursor.parse(text)
            version: str = connection.version
            return version

        return await self.begin(work)

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        return self.ask_all(name, [values])[0]

    async def answer(
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[StoredRow]]
    ) -> None:
        wait = rows[0].get("wait")
        if len(rows) > 1 and wait:
            # A row that stays locked must not delay the others.
            async def alone(asked: Asked) -> None:
                await self.answer(name, asked[:1], asked[1:])

            at_once = min(self._source.at_once, len(rows))
            await answer_in_order(alone, zip(rows, pendings, strict=True), at_once)
            return
        assert wait is None or isinstance(wait, float)
        text = statement(name, self.driver.options.schema, wait)
        work: Work[list[StoredRow | None]] = partial(_execute, text=text, rows=rows)
        if name == "look":
            work = partial(_retried, work)
        what = f"{self._where}: the row in doormans is locked by another transaction"
        locked = RowLocked(what=what, nothing_done=True)

        async def carry() -> list[Outcome]:
            found = await self._runner.carry(work)
            return [locked if one is None else one for one in found]

        await self.settle_all(pendings, carry)

    async def run_row(
        self, statement: Statement, connection: Connection
    ) -> StatementResult:
        with connection.cursor() as cursor:
            try:
                await cursor.execute(statement.text, list(statement.values))
            except Error as exc:
                if errors.code_of(exc) in _BAD_MARKS:
                    what = str(exc)
                    raise Unsupported(what=what, hint=SCHEMA, lacks="tables") from exc
                raise
            if statement.only_reads:
                return StatementResult(rows=tuple(await cursor.fetchall()))
            changed = cursor.rowcount
        await connection.commit()
        return StatementResult(changed)


async def _retried(work: Work[T], connection: Connection) -> T:
    async def attempt() -> T:
        try:
            return await work(connection)
        except Error as exc:
            if errors.is_contention(exc):
                # The failed statement has left its transaction open.
                await connection.rollback()
            raise

    return await retry_on_conflict(attempt, errors.is_contention)


async def _execute(
    connection: Connection, *, text: str, rows: Sequence[Values]
) -> list[StoredRow | None]:
    many, names = len(rows), [bind for bind in _IN if bind in rows[0]]
    with connection.cursor() as cursor:
        outs = {bind: cursor.var(str, size, many) for bind, size in _OUT.items()}
        outs["o_done"] = cursor.var(int, arraysize=many)
        cursor.setinputsizes(**{name: _IN[name] for name in names}, **outs)
        binds = [{name: row[name] for name in names} for row in rows]
        if many == 1:
            await cursor.execute(text, {**binds[0], **outs})
        else:
            await cursor.executemany(text, binds)
        return [_stored_row(outs, row) for row in range(many)]


def _stored_row(outs: dict[str, Any], row: int) -> StoredRow | None:
    found: dict[str, Any] = {b[2:]: var.getvalue(row) for b, var in outs.items()}
    if found["done"] == _WAS_LOCKED:
        return None
    found["done"] = bool(found["done"])
    found["now"] = micros_of(found["now"])
    found["fence"] = None if found["fence"] is None else int(found["fence"])
    return StoredRow(**found)


def check_driver() -> None:
    """Raise ``Unsupported`` if python-oracledb is too old or in thick mode."""
    if int(ORACLEDB.__version__.partition(".")[0]) < MIN_DRIVER:
        raise Unsupported(
            what=f"python-oracledb {ORACLEDB.__version__} is too old",
            hint=f"pip install 'oracledb>={MIN_DRIVER}'",
        )
    if not ORACLEDB.is_thin_mode():
        raise errors.thick_mode("oracledb")


def check_session(comparisons: Collection[str], where: str) -> None:
    """Raise ``ConfigurationError`` unless all sessions compare texts byte by byte.

    ``comparisons``: values of ``NLS_COMP``, in which ``BINARY`` is the right one.
    """
    for other in {*comparisons} - {"BINARY"}:
        raise ConfigurationError(
            what=f"{where}: NLS_COMP is {other}, by which different names may be equal",
            hint="ALTER SESSION SET NLS_COMP = BINARY, in a trigger when it logs on or "
            "the session_callback of a pool",
        )


def check_version(version: str, where: str) -> None:
    """Raise ``Unsupported`` if the server ``where`` is too old."""
    parts = version.split(".")
    if tuple(int(part) for part in parts[:2]) < MIN_SERVER:
        raise errors.too_old(where, version)
