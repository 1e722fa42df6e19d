"""Statements on the user's own tables, for row locks."""

from __future__ import annotations

from typing import TypeVar

from aiorwlock_remote._util.plan_runner import run_plan
from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.driver import Connection, Error
from aiorwlock_remote.backends.oracle.options import SCHEMA
from aiorwlock_remote.core.row_plans import Plan, Statement, StatementResult
from aiorwlock_remote.errors import Unsupported

T = TypeVar("T")

_NO_MARK = {"ORA-01722", "ORA-00932"}
"""A mark is no value of the column's type."""


async def carried(plan: Plan[Statement, T], connection: Connection) -> T:
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
