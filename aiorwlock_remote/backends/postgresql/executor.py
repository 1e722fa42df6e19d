"""Requests and answers: which statement a step is, and who carries it.

Statements that notify somebody, while the server takes no notifications.

Its queue of them is full when one session that listens stays in a transaction for long:
then each ``NOTIFY`` of the whole server fails, and the statement with it. A lock that
could not be released for that would stay held, so it is released without waking anybody
(``tests/backends/postgresql/test_notify_queue.py``). Waiters poll every two seconds.

Statements on the user's own tables, for row locks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.connector import CUSTOM
from aiorwlock_remote.backends.postgresql.driver import Connection, PostgresError, Row
from aiorwlock_remote.backends.postgresql.options import SCHEMA, Options
from aiorwlock_remote.backends.postgresql.statements import (
    BoundStatement,
    look,
    statement,
    swap,
)
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import PerCallExecutor, mutex_change_of
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.table_cas import Values
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.core.row import CONSTRAINT_HINT, Plan, Statement, StatementResult
from aiorwlock_remote.core.row_dialects import WAKES
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.logs import log_event

QUEUE_FULL_HINT = "which session that listens is in a transaction? see pg_stat_activity"

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")

T = TypeVar("T")


class NotifyFallback:
    """Of one store; it tells the log once an outage."""

    def __init__(self, where: str) -> None:
        """``where``: the server, for messages."""
        self._where = where
        self._full = False

    async def sent(
        self, loud: Callable[[], Awaitable[T]], quiet: Callable[[], Awaitable[T]]
    ) -> T:
        """What ``loud`` tells; or ``quiet``, which notifies nobody, where it cannot."""
        try:
            told = await loud()
        except PostgresError as exc:
            if errors.code_of(exc) != errors.TOO_MUCH:
                raise
        else:
            self._full = False
            return told
        told = await quiet()  # fails as well if it was not the queue
        if not self._full:
            self._full = True
            log_event(
                log, "notify_queue_full", server=self._where, hint=QUEUE_FULL_HINT
            )
        return told


MAX_NOTIFY_BYTES = 7_800
"""Bytes in a notification, without two times."""


class PostgresqlExecutor(PerCallExecutor):
    """Requests of one thread or loop, carried on a side by its connections."""

    def __init__(
        self, side: DriverLoop, lines: ConnectionSource[Connection], options: Options
    ) -> None:
        """``lines`` live on ``side``."""
        super().__init__(side, lines, CUSTOM, options.where, options.call_timeout)
        self._options = options
        self.notices: NotifyFallback = NotifyFallback(options.where)

    async def rows(self, name: str, *values: object) -> list[Row]:
        """What any other statement tells.

        Raises:
            BackendError: as ``errors.of`` says.
        """

        async def work(connection: Connection) -> list[Row]:
            asking = partial(connection.fetch, self._text(name), *values)
            return await retry_on_conflict(asking, errors.is_contention)

        return await self.begin(work)

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        """What stands behind that key.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        rows = await self.rows("scan", kind, number)
        return [
            (row["resource_type"], row["resource_id"], stored_row_of(row))
            for row in rows
        ]

    async def looked(self, values: Values, connection: Connection) -> StoredRow:
        """Both rows, of one moment."""
        asking = partial(self._row, look(self._options.schema), values, connection)
        return stored_row_of(await retry_on_conflict(asking, errors.is_contention))

    async def swapped(self, values: Values, connection: Connection) -> StoredRow:
        """One statement; it tells what stands there if a refusal is no surprise.

        That is a plan of its own, a tenth of the server's work for any statement.
        """
        if not (values.get("wakes") or values.get("ear")):
            return await self._swapped(values, connection)
        quiet = {**values, "wakes": (), "ear": None}
        return await self.notices.sent(
            partial(self._swapped, values, connection),
            partial(self._swapped, quiet, connection),
        )

    async def _swapped(self, values: Values, connection: Connection) -> StoredRow:
        seat, wakes = mutex_change_of(values), bool(values.get("wakes"))
        wait = values.get("wait")
        if isinstance(wait, float):
            values = {**values, "wait": str(max(1, round(wait * 1000)))}
        asking = swap(
            seat,
            self._options.schema,
            taken=values["i_ticket"] is not None,
            made=values["i_version"] is not None,
            begins=values["n_fence"] is not None,
            wakes=wakes,
            tells=wakes and _can_be_told(values),
            came=values.get("ear") is not None,
            lazily=bool(values.get("lazily")),
            asks=not values.get("calm"),
            waits=wait is not None,
        )
        try:
            row = await self._row(asking, values, connection)
        except PostgresError as exc:
            if errors.code_of(exc) not in errors.REFUSED:
                raise
            return await self.looked(values, connection)
        if row is None or (not row["done"] and _as_believed(row, values)):
            # It waited for another step, and sees nothing of that; or it came too late.
            return await self.looked(values, connection)
        return stored_row_of(row, done=row["done"])

    async def _row(self, asking: BoundStatement, values: Values, on: Connection) -> Row:
        return await on.fetchrow(asking.text, *asking.picked(values))

    def _text(self, name: str) -> str:
        return statement(name, self._options.schema)


def stored_row_of(row: Row, *, done: bool = False) -> StoredRow:
    """What a row of ``tell``, ``look`` or ``scan`` tells."""
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


def _can_be_told(values: Values) -> bool:
    """Whether there is room in a notification: our JSON is the longer one."""
    told = (values["i_kind"], values["i_number"], values["n_version"])
    return len(json.dumps((*told, values["n_record"]))) <= MAX_NOTIFY_BYTES


def _as_believed(row: Row, values: Values) -> bool:
    believed = values["i_version"], values["i_ticket"], values["i_since"]
    return (row["version"], row["ticket"], row["since"]) == believed


_NO_MARK = "22P02"
"""A mark is no value of the column's type."""
_NOT_SENT = "22000"
"""The driver cannot make of a value what the column wants."""
_CONSTRAINTS = ("23", "22003")
"""The table's own, and a count that is out of its column's range."""


async def run_row_plan(
    plan: Plan[Statement, T], notices: NotifyFallback, connection: Connection
) -> T:
    """Carry it out, each statement for itself."""

    async def run(statement: Statement) -> StatementResult:
        text, values = statement.text, statement.values
        try:
            if statement.tells:
                return StatementResult(
                    rows=tuple(map(tuple, await connection.fetch(text, *values)))
                )
            asking = partial(connection.execute, text, *values)
            quiet = partial(connection.execute, text.partition(WAKES)[0], *values)
            status: str = await (
                notices.sent(asking, quiet) if WAKES in text else asking()
            )
        except PostgresError as exc:
            code, said = errors.code_of(exc), errors.said(exc)
            if code == _NOT_SENT:
                raise ConfigurationError(what=said) from exc
            if code == _NO_MARK:
                raise Unsupported(what=said, hint=SCHEMA) from exc
            if code.startswith(_CONSTRAINTS):
                raise ConfigurationError(what=said, hint=CONSTRAINT_HINT) from exc
            raise
        return StatementResult(int(status.rpartition(" ")[2]))

    return await run_plan(plan, run)
