"""Statements on the user's own tables, for row locks."""

from __future__ import annotations

from typing import TypeVar

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import Connection, PostgresError
from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.core.row_plans import Plan, Ran, Statement
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.swapping.row_plans import driven

T = TypeVar("T")

_NO_MARK = "22P02"
"""A mark is no value of the column's type."""
_NOT_SENT = "22000"
"""The driver cannot make of a value what the column wants."""


async def carried(plan: Plan[Statement, T], connection: Connection) -> T:
    """Carry it out, each statement for itself."""

    async def run(statement: Statement) -> Ran:
        text, values = statement.text, statement.values
        try:
            if statement.tells:
                return Ran(
                    rows=tuple(map(tuple, await connection.fetch(text, *values)))
                )
            status: str = await connection.execute(text, *values)
        except PostgresError as exc:
            if errors.code_of(exc) == _NOT_SENT:
                raise ConfigurationError(what=" ".join(str(exc).split())) from exc
            if errors.code_of(exc) == _NO_MARK:
                raise Unsupported(what=str(exc), hint=SCHEMA) from exc
            raise
        return Ran(int(status.rpartition(" ")[2]))

    return await driven(plan, run)
