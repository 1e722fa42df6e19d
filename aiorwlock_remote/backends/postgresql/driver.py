"""Adapters of asyncpg: its connections, its pool, requests and users' transactions.

asyncpg has few types; everything that we use of it is in this module and ``errors.py``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import asyncpg

from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.errors import Failure, PostgresError
from aiorwlock_remote.backends.postgresql.options import SCHEMA, Options
from aiorwlock_remote.backends.postgresql.statements import (
    check_tables,
    look_statement,
    statement,
    statements_of,
    swap_statement,
)
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import DriverExecutor, mutex_change_of
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    ReturnMode,
    TransactionDriver,
    pool_over,
)
from aiorwlock_remote.cas.driver.pool import Driver, has_input, spawn_detached
from aiorwlock_remote.cas.table_cas import StoredRow, Values, micros_of
from aiorwlock_remote.core.row import CONSTRAINT_HINT, Statement, StatementResult
from aiorwlock_remote.core.row_dialects import WAKES
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event

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
MIN_SERVER = 120000
"""Oldest supported server, as its ``server_version_num``."""
MAX_NOTIFY_BYTES = 7_700
"""Bytes of a notification without its times, fence and proof; the server's limit is
8000 in all."""
QUEUE_FULL_HINT = "which session that listens is in a transaction? see pg_stat_activity"

_BAD_MARK = "22P02"
"""SQLSTATE: the user's column cannot hold a word that a row lock writes there."""
_BAD_ARGUMENT = "22000"
"""SQLSTATE that asyncpg sets when it cannot convert a value for a column."""
_CONSTRAINTS = "23", "22003"
"""SQLSTATEs of the user's constraints, and of a number too large for a column."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")

T = TypeVar("T")


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
        if connection.is_closed():
            return False
        transport: object = getattr(connection, "_transport", None)
        if transport is not None:
            return not has_input(transport)
        instead = "a connection that the server has just closed fails its next request"
        report_differing("asyncpg", "Connection._transport", instead)
        return True

    def borrowed(self, connection: Connection) -> None:
        # A step in a transaction would be reported as done, and the pool would roll it
        # back. What asyncpg says is what the server's last answer has said.
        if connection.is_in_transaction():
            raise ConfigurationError(
                what=f"{self.options.where}: connections come in an open transaction",
                hint="end it in the setup= of the pool, or in the handler of "
                "SQLAlchemy's event",
            )

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


class PostgresqlExecutor(DriverExecutor):
    """Carries out requests on PostgreSQL, by statements of ``statements.sql``."""

    driver: PostgresqlDriver
    _queue_full = False

    async def check_server(self, logged_in: Callable[[], object]) -> None:
        (server,) = await self.rows("server")
        logged_in()
        if server["number"] < MIN_SERVER:
            raise Unsupported(
                what=f"{self._where}: PostgreSQL {server['version']}",
                hint="12 or later is needed",
            )
        schema = self.driver.options.schema or None
        columns = [tuple(row) for row in await self.rows("columns", schema)]
        keyless = {row["table_name"] for row in await self.rows("keyless", schema)}
        check_tables(columns, keyless, self.driver.options.schema, self._where)

    async def rows(self, name: str, *values: object) -> list[Row]:
        text = statement(name, self.driver.options.schema)

        async def work(connection: Connection) -> list[Row]:
            # A role may be set to SERIALIZABLE, where reads are refused, too
            # (test_isolation.py).
            fetch = partial(connection.fetch, text, *values)
            return await retry_on_conflict(fetch, errors.is_contention)

        return await self.begin(work)

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        rows = await self.rows("scan", kind, number)
        return [
            (row["resource_type"], row["resource_id"], stored_row_of(row))
            for row in rows
        ]

    async def look(self, values: Values, connection: Connection) -> StoredRow:
        bound = look_statement(self.driver.options.schema)
        fetch = partial(connection.fetchrow, bound.text, *bound.pick(values))
        return stored_row_of(await retry_on_conflict(fetch, errors.is_contention))

    async def renew(
        self, rows: Sequence[Values], connection: Connection
    ) -> Sequence[StoredRow | None]:
        text = statement("renewals", self.driver.options.schema)
        kept: list[Row] = await connection.fetch(text, json.dumps(rows))
        done = {row["version"]: micros_of(row["now"]) for row in kept}
        versions = [str(values["n_version"]) for values in rows]
        return [
            StoredRow(done=True, now=done[version]) if version in done else None
            for version in versions
        ]

    def swap(self, values: Values, connection: Connection) -> Awaitable[StoredRow]:
        if not (values.get("wakes") or values.get("ear")):
            return self._swap(values, connection)
        # ``wakes`` and ``ear`` are the processes to notify, see ``TableCas``.
        silent = {**values, "wakes": (), "ear": None}
        return self._notifying(
            partial(self._swap, values, connection),
            partial(self._swap, silent, connection),
        )

    async def _swap(self, values: Values, connection: Connection) -> StoredRow:
        wakes, wait = bool(values.get("wakes")), values.get("wait")
        pushes = wakes and values.get("p_record") is not None
        if pushes and not _fits_notification(values, "p_record"):
            values = {**values, "p_record": None}
        if isinstance(wait, float):
            # A ``lock_timeout`` of 0 would be no limit at all.
            values = {**values, "wait": str(max(1, round(wait * 1000)))}
        bound = swap_statement(
            mutex_change_of(values),
            self.driver.options.schema,
            taken=values["i_ticket"] is not None,
            made=values["i_version"] is not None,
            begins=values["n_fence"] is not None,
            wakes=wakes,
            pushes=pushes,
            with_record=wakes
            and not values.get("secret")
            and _fits_notification(values, "n_record"),
            came=values.get("ear") is not None,
            lazily=bool(values.get("lazily")),
            # The part of the statement that reads a refusing row is a plan of its own
            # and a tenth of the server's work: left out where no refusal is expected.
            asks=not values.get("calm"),
            waits=wait is not None,
            skips=bool(values.get("crowded")),
        )
        try:
            row = await connection.fetchrow(bound.text, *bound.pick(values))
        except PostgresError as exc:
            if errors.code_of(exc) not in errors.REFUSED:
                raise
            return await self.look(values, connection)
        if row is not None and row["done"] is None:
            return StoredRow(done=False, now=micros_of(row["now"]), locked=True)
        if row is None or (not row["done"] and _is_unchanged(row, values)):
            # The statement has waited for another step, whose result its snapshot does
            # not show; or it came too late. Only a new statement sees the row.
            return await self.look(values, connection)
        return stored_row_of(row, done=row["done"])

    async def run_row(
        self, statement: Statement, connection: Connection
    ) -> StatementResult:
        text, values = statement.text, statement.values
        try:
            if statement.only_reads:
                found = await connection.fetch(text, *values)
                return StatementResult(rows=tuple(map(tuple, found)))
            send = partial(connection.execute, text, *values)
            silent = partial(connection.execute, text.partition(WAKES)[0], *values)
            sending = self._notifying(send, silent) if WAKES in text else send()
            status: str = await sending
        except PostgresError as exc:
            code, message = errors.code_of(exc), errors.message_of(exc)
            if code == _BAD_ARGUMENT:
                raise ConfigurationError(what=message, refused="value") from exc
            if code == _BAD_MARK:
                raise Unsupported(what=message, hint=SCHEMA, lacks="tables") from exc
            if code.startswith(_CONSTRAINTS):
                raise ConfigurationError(what=message, hint=CONSTRAINT_HINT) from exc
            raise
        return StatementResult(int(status.rpartition(" ")[2]))

    async def _notifying(
        self, send: Callable[[], Awaitable[T]], silent: Callable[[], Awaitable[T]]
    ) -> T:
        # The server's queue of notifications fills up while one session that listens
        # stays in a transaction. Then every NOTIFY fails, and its statement with it. A
        # release would fail for that and the lock stay held, so it is sent without the
        # notification; waiters poll (test_notify_queue.py).
        try:
            result = await send()
        except PostgresError as exc:
            if errors.code_of(exc) != errors.LIMIT_EXCEEDED:
                raise
        else:
            self._queue_full = False
            return result
        result = await silent()  # it fails as well if the queue was not the reason
        if not self._queue_full:  # one record for an outage
            self._queue_full = True
            log_event(
                log, "notify_queue_full", server=self._where, hint=QUEUE_FULL_HINT
            )
        return result


def stored_row_of(row: Row, *, done: bool = False) -> StoredRow:
    """Return what a result row of a ``look`` or ``swap`` statement says.

    ``done``: whether it is of a swap that was carried out.
    """
    return StoredRow(
        done=done,
        now=micros_of(row["now"]),
        fence=None if row["fence"] is None else int(row["fence"]),
        created=row["created"],
        version=row["version"],
        record=row["record"],
        ticket=row["ticket"],
        since=row["since"],
    )


def _fits_notification(values: Values, record: str) -> bool:
    # Python's JSON is never shorter than the server's: it escapes what is not ASCII.
    news = values["i_kind"], values["i_number"], values["n_version"], values[record]
    return len(json.dumps(news)) <= MAX_NOTIFY_BYTES


def _is_unchanged(row: Row, values: Values) -> bool:
    expected = values["i_version"], values["i_ticket"], values["i_since"]
    return (row["version"], row["ticket"], row["since"]) == expected


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
