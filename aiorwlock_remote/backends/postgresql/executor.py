"""Carries out requests as statements of ``statements.sql``, and reads their answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import (
    Connection,
    PostgresqlDriver,
    Row,
)
from aiorwlock_remote.backends.postgresql.errors import PostgresError
from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.backends.postgresql.schema import check_tables
from aiorwlock_remote.backends.postgresql.statements import (
    BoundStatement,
    look_statement,
    statement,
    swap_statement,
)
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import DriverExecutor, mutex_change_of
from aiorwlock_remote.cas.table_cas import Values
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.core.row import CONSTRAINT_HINT, Statement, StatementResult
from aiorwlock_remote.core.row_dialects import WAKES
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event

MIN_SERVER = 120000
"""Oldest supported server, as its ``server_version_num``."""
MAX_NOTIFY_BYTES = 7_800
"""Bytes of a notification without its two times; the server's limit is 8000 in all."""
QUEUE_FULL_HINT = "which session that listens is in a transaction? see pg_stat_activity"

_BAD_MARK = "22P02"
"""SQLSTATE: the user's column cannot hold a word that a row lock writes there."""
_BAD_ARGUMENT = "22000"
"""SQLSTATE that asyncpg sets when it cannot convert a value for a column."""
_CONSTRAINTS = "23", "22003"
"""SQLSTATEs of the user's constraints, and of a number too large for a column."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")

T = TypeVar("T")


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
        fetch = partial(
            _fetch, look_statement(self.driver.options.schema), values, connection
        )
        return stored_row_of(await retry_on_conflict(fetch, errors.is_contention))

    async def swap(self, values: Values, connection: Connection) -> StoredRow:
        if not (values.get("wakes") or values.get("ear")):
            return await self._swap(values, connection)
        # ``wakes`` and ``ear`` are the processes to notify, see ``TableCas``.
        silent = {**values, "wakes": (), "ear": None}
        return await self._notifying(
            partial(self._swap, values, connection),
            partial(self._swap, silent, connection),
        )

    async def _swap(self, values: Values, connection: Connection) -> StoredRow:
        wakes, wait = bool(values.get("wakes")), values.get("wait")
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
            with_record=wakes and _fits_notification(values),
            came=values.get("ear") is not None,
            lazily=bool(values.get("lazily")),
            # The part of the statement that reads a refusing row is a plan of its own
            # and a tenth of the server's work: left out where no refusal is expected.
            asks=not values.get("calm"),
            waits=wait is not None,
        )
        try:
            row = await _fetch(bound, values, connection)
        except PostgresError as exc:
            if errors.code_of(exc) not in errors.REFUSED:
                raise
            return await self.look(values, connection)
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
            if statement.tells:
                found = await connection.fetch(text, *values)
                return StatementResult(rows=tuple(map(tuple, found)))
            send = partial(connection.execute, text, *values)
            silent = partial(connection.execute, text.partition(WAKES)[0], *values)
            sending = self._notifying(send, silent) if WAKES in text else send()
            status: str = await sending
        except PostgresError as exc:
            code, message = errors.code_of(exc), errors.message_of(exc)
            if code == _BAD_ARGUMENT:
                raise ConfigurationError(what=message) from exc
            if code == _BAD_MARK:
                raise Unsupported(what=message, hint=SCHEMA) from exc
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


async def _fetch(bound: BoundStatement, values: Values, connection: Connection) -> Row:
    return await connection.fetchrow(bound.text, *bound.pick(values))


def stored_row_of(row: Row, *, done: bool = False) -> StoredRow:
    """Convert a result row of ``look`` or of a swap; ``done``: the swap succeeded."""
    return StoredRow(
        done=done,
        now=row["now"],
        fence=None if row["fence"] is None else int(row["fence"]),
        created=row["created"],
        version=row["version"],
        record=row["record"],
        ticket=row["ticket"],
        since=row["since"],
    )


def _fits_notification(values: Values) -> bool:
    # Python's JSON is never shorter than the server's: it escapes what is not ASCII.
    news = values["i_kind"], values["i_number"], values["n_version"], values["n_record"]
    return len(json.dumps(news)) <= MAX_NOTIFY_BYTES


def _is_unchanged(row: Row, values: Values) -> bool:
    expected = values["i_version"], values["i_ticket"], values["i_since"]
    return (row["version"], row["ticket"], row["since"]) == expected
