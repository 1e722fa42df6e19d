"""Statements on the user's own tables, for row locks."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from aiorwlock_remote._util.plan_runner import run_plan
from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import Connection, PostgresError
from aiorwlock_remote.backends.postgresql.notices import Notices
from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.core.row import CONSTRAINT
from aiorwlock_remote.core.row_dialects import WAKES
from aiorwlock_remote.core.row_plans import Plan, Statement, StatementResult
from aiorwlock_remote.errors import ConfigurationError, Unsupported

T = TypeVar("T")

_NO_MARK = "22P02"
"""A mark is no value of the column's type."""
_NOT_SENT = "22000"
"""The driver cannot make of a value what the column wants."""
_CONSTRAINTS = ("23", "22003")
"""The table's own, and a count that is out of its column's range."""


async def run_row_plan(
    plan: Plan[Statement, T], notices: Notices, connection: Connection
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
                raise ConfigurationError(what=said, hint=CONSTRAINT) from exc
            raise
        return StatementResult(int(status.rpartition(" ")[2]))

    return await run_plan(plan, run)
