"""Requests and answers: which statements a step is, and who carries them.

Statements on the user's own tables, for row locks.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.connector import CUSTOM
from aiorwlock_remote.backends.mariadb.driver import Connection, Error, Row, run
from aiorwlock_remote.backends.mariadb.options import SCHEMA, Options
from aiorwlock_remote.backends.mariadb.statements import (
    ROLLBACK,
    DoormanChange,
    literal,
    statement,
    step,
)
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import PerCallExecutor, mutex_change_of
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.table_cas import Values
from aiorwlock_remote.cas.table_rows import StoredRow, micros_of, time_text
from aiorwlock_remote.core.row import CONSTRAINT_HINT, Plan, Statement, StatementResult
from aiorwlock_remote.errors import ConfigurationError, Unsupported


class MariadbExecutor(PerCallExecutor):
    """Requests of one thread or loop, carried on a side by its connections."""

    def __init__(
        self, side: DriverLoop, lines: ConnectionSource[Connection], options: Options
    ) -> None:
        """``lines`` live on ``side``."""
        super().__init__(side, lines, CUSTOM, options.where, options.call_timeout)
        self._options = options

    async def rows(self, name: str, **values: object) -> list[Row]:
        """What any other statement tells.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        text = statement(name, self._options.tables, **values)

        async def work(connection: Connection) -> list[Row]:
            asking = partial(run, connection, text)
            return (await retry_on_conflict(asking, errors.is_contention))[0].rows

        return await self.begin(work)

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        """What stands behind that key.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        rows = await self.rows("scan", kind=kind, number=number)
        return [(row[0].decode(), row[1], stored_row_of(row[2:])) for row in rows]

    async def server(self) -> dict[str, str]:
        """What is set there, and for this session.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        told: list[tuple[str, str]] = await self.rows("server")
        return dict(told)

    async def looked(self, values: Values, connection: Connection) -> StoredRow:
        """Both rows, of one moment."""
        return await self._look(connection, values)

    async def swapped(self, values: Values, connection: Connection) -> StoredRow:
        """One request; refused, a second one that looks."""
        made = values["i_version"] is not None
        found = await self._step(connection, values, "change" if made else "make")
        if made or found.done or found.created is None or found.version is not None:
            return found
        return await self._step(connection, values, "adopt")

    async def _step(
        self, connection: Connection, values: Values, door: DoormanChange
    ) -> StoredRow:
        seat, tables = mutex_change_of(values), self._options.tables
        known = {
            **values,
            "kind": values["i_kind"],
            "number": values["i_number"],
            "latest": micros_of(str(values["i_latest"])),
        }
        try:
            told = await run(connection, *step(door, seat, known, tables))
        except Error as exc:
            if errors.is_broken(exc):
                raise
            if errors.code_of(exc) != errors.DUPLICATE:
                await run(connection, ROLLBACK)
                raise
            return await self._look(connection, values, ROLLBACK)
        first = told[0] if seat == "stay" else told[1]
        # Whoever leaves has left, also if somebody else took the seat just before.
        if not first.changed or (seat == "move" and not told[2].changed):
            return await self._look(connection, values)
        least = values["n_fence"]
        fence = max(least, first.told) if isinstance(least, int) else None
        return StoredRow(done=True, now=time_text(first.told), fence=fence)

    async def _look(
        self, connection: Connection, values: Values, *before: str
    ) -> StoredRow:
        known = {"kind": values["i_kind"], "number": values["i_number"]}
        text = statement("look", self._options.tables, **known)
        asking = partial(run, connection, *before, text)
        told = await retry_on_conflict(asking, errors.is_contention)
        (row,) = told[len(before)].rows
        return stored_row_of(row)


def stored_row_of(row: Row) -> StoredRow:
    """What a row of ``look``, or the end of one of ``scan``, tells."""
    now, created, version, record, ticket, since = row
    return StoredRow(
        done=False,
        now=time_text(now),
        created=None if created is None else time_text(created),
        version=_text(version),
        record=_text(record),
        ticket=_text(ticket),
        since=None if since is None else time_text(since),
    )


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


T = TypeVar("T")

_NO_MARK = 1292
"""A mark is no value of the column's type."""
_CONSTRAINTS = {1048, 1062, 1451, 1452, 4025}
"""The table's own."""


async def run_row_plan(
    plan: Plan[Statement, T], connection: Connection, *, seconds: float
) -> T:
    """Carry it out; the server tries each for so many seconds.

    A statement that waits for a row goes on waiting when its client has hung up, and
    would lock the row for nobody.
    """
    patient = f"SET STATEMENT max_statement_time = {seconds:f} FOR "

    async def execute(statement: Statement) -> StatementResult:
        text = statement.text % tuple(map(literal, statement.values))
        try:
            answer = (await run(connection, patient + text))[0]
        except Error as exc:
            if errors.code_of(exc) == _NO_MARK:
                raise Unsupported(what=str(exc), hint=SCHEMA) from exc
            if errors.code_of(exc) in _CONSTRAINTS:
                what = errors.said(exc)
                raise ConfigurationError(what=what, hint=CONSTRAINT_HINT) from exc
            raise
        if statement.tells:
            return StatementResult(rows=tuple(answer.rows))
        return StatementResult(answer.changed)

    return await run_plan(plan, execute)
