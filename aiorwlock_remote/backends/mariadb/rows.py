"""Statements on the user's own tables, for row locks."""

from __future__ import annotations

from typing import TypeVar

from aiorwlock_remote._util.plan_runner import run_plan
from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.driver import Connection, Error, run
from aiorwlock_remote.backends.mariadb.options import SCHEMA
from aiorwlock_remote.backends.mariadb.statements import literal
from aiorwlock_remote.core.row import CONSTRAINT
from aiorwlock_remote.core.row_plans import Plan, Statement, StatementResult
from aiorwlock_remote.errors import ConfigurationError, Unsupported

T = TypeVar("T")

_NO_MARK = 1292
"""A mark is no value of the column's type."""
_CONSTRAINTS = {1048, 1062, 1451, 1452, 4025}
"""The table's own."""


async def carried(
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
                raise ConfigurationError(what=what, hint=CONSTRAINT) from exc
            raise
        if statement.tells:
            return StatementResult(rows=tuple(answer.rows))
        return StatementResult(answer.changed)

    return await run_plan(plan, execute)
