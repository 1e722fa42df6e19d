"""Requests and answers: which binds a block has, and who carries them.

Statements on the user's own tables, for row locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.connector import run_call
from aiorwlock_remote.backends.oracle.driver import NUMBER, Connection, Error
from aiorwlock_remote.backends.oracle.options import SCHEMA, Options
from aiorwlock_remote.backends.oracle.statements import statement
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import (
    DriverExecutor,
    T,
    Work,
    answer_in_order,
)
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.port import RowLocked
from aiorwlock_remote.cas.table_cas import MAX_RECORD_BYTES, Values
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.core.row import Plan, Statement, StatementResult
from aiorwlock_remote.errors import Unsupported

Row = tuple[Any, ...]

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


LOCKED = "the row in doormans is locked by another transaction"
_WAS_LOCKED = 2
"""Of ``o_done``, see ``statements.sql``."""
ROWS_PER_FETCH = 5000
"""Of a query's, in one round trip."""


class OracleExecutor(DriverExecutor):
    """Requests of one thread or loop, carried on a side by its connections.

    Several of one kind are the same block several times, in one round trip; two, if the
    connection has never seen it. If one of them fails, what became of the others is not
    known.
    """

    def __init__(
        self, side: DriverLoop, lines: ConnectionSource[Connection], options: Options
    ) -> None:
        """``lines`` live on ``side``."""
        super().__init__(side, lines, options.where)
        self._lines = lines
        self._options = options
        self._known = False

    async def carry(self, work: Work[T]) -> T:
        """As ``DriverExecutor.carry``."""
        try:
            return await self._carried(work)
        except (Error, OSError) as exc:
            raise errors.from_driver(exc, self._options.where) from exc

    async def rows(self, name: str, values: Values) -> list[Row]:
        """What a query tells, or the number of rows another statement changed.

        Raises:
            BackendError: as ``errors.of`` says.
        """

        async def ask(connection: Connection) -> list[Row]:
            with connection.cursor() as cursor:
                cursor.arraysize = ROWS_PER_FETCH
                await cursor.execute(self._text(name), dict(values))
                if cursor.description is not None:
                    return await cursor.fetchall()
                await connection.commit()
                return [(cursor.rowcount,)]

        return await self.begin(partial(_again, ask))

    async def version(self) -> str:
        """The server's, after the first connection was made; and the block's rights.

        Raises:
            BackendError: as ``errors.of`` says.
        """

        async def work(connection: Connection) -> str:
            with connection.cursor() as cursor:
                await cursor.parse(self._text("swap"))
            return connection.version

        return await self.begin(work)

    async def answer(
        self, name: str, rows: Sequence[Values], pendings: Sequence[Pending[StoredRow]]
    ) -> None:
        """All at once; what may wait for a locked row, each by itself."""
        if len(rows) > 1 and rows[0].get("wait"):

            async def alone(values: Values, pending: Pending[StoredRow]) -> None:
                await self.answer(name, [values], [pending])

            some = min(self._lines.at_once, len(rows))
            await answer_in_order(alone, rows, pendings, some)
            return
        wait = rows[0].get("wait")
        assert wait is None or isinstance(wait, float)
        text = statement(name, self._options.schema, wait)
        work: Work[list[StoredRow | None]] = partial(_executed, text=text, rows=rows)
        if name == "look":
            work = partial(_again, work)
        try:
            found = await self._carried(work)
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            error = errors.from_driver(exc, self._options.where)
            error.__cause__ = None if error is exc else exc
            self._side.tell(_failed, pendings, error)
        except asyncio.CancelledError:  # the loop ends
            self._side.tell(_failed, pendings, self.ended())
            raise
        else:
            what = f"{self._options.where}: {LOCKED}"
            locked = RowLocked(what=what, nothing_done=True)
            self._side.tell(_answered, pendings, found, locked)

    async def _carried(self, work: Work[T]) -> T:
        done = await run_call(self._lines, work, self._options, known=self._known)
        self._known = True
        return done

    def _text(self, name: str) -> str:
        return statement(name, self._options.schema)


async def _again(work: Work[T], connection: Connection) -> T:
    """Do it again, from the beginning of a transaction, if it met another one."""

    async def tried() -> T:
        try:
            return await work(connection)
        except Error as exc:
            if errors.is_contention(exc):
                await connection.rollback()
            raise

    return await retry_on_conflict(tried, errors.is_contention)


async def _executed(
    connection: Connection, *, text: str, rows: Sequence[Values]
) -> list[StoredRow | None]:
    """What each of them found; None: its row was locked."""
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
        return [_found(outs, row) for row in range(many)]


def _found(outs: dict[str, Any], row: int) -> StoredRow | None:
    told: dict[str, Any] = {b[2:]: var.getvalue(row) for b, var in outs.items()}
    if told["done"] == _WAS_LOCKED:
        return None
    told["done"] = bool(told["done"])
    told["fence"] = None if told["fence"] is None else int(told["fence"])
    return StoredRow(**told)


def _answered(
    pendings: Sequence[Pending[StoredRow]],
    found: Sequence[StoredRow | None],
    locked: RowLocked,
) -> None:
    for pending, one in zip(pendings, found, strict=True):
        if one is None:
            pending.set_exception(locked)
        else:
            pending.set_result(one)


def _failed(pendings: Sequence[Pending[StoredRow]], error: Exception) -> None:
    for pending in pendings:
        pending.set_exception(error)


_NO_MARK = {"ORA-01722", "ORA-00932"}
"""A mark is no value of the column's type."""


async def run_row_plan(plan: Plan[Statement, T], connection: Connection) -> T:
    """Carry it out, each statement for itself."""

    async def run(statement: Statement) -> StatementResult:
        with connection.cursor() as cursor:
            try:
                await cursor.execute(statement.text, list(statement.values))
            except Error as exc:
                if errors.code_of(exc) in _NO_MARK:
                    raise Unsupported(what=str(exc), hint=SCHEMA) from exc
                raise
            if statement.tells:
                return StatementResult(rows=tuple(await cursor.fetchall()))
            changed = cursor.rowcount
        await connection.commit()
        return StatementResult(changed)

    return await run_plan(plan, run)
