"""Statements of row locks over a user's engine, beyond any caller's cancellation."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Select, Update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.plan_runner import run_plan
from aiorwlock_remote.core.row_plans import Plan, StatementResult
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.integrations._plan_runner import PlanRunner
from aiorwlock_remote.integrations.sqlalchemy import errors
from aiorwlock_remote.integrations.sqlalchemy.pools import autocommitting, check_pool

T = TypeVar("T")
Statement = Update | Select[Any]

LOCK_WAIT = 2.0
"""Seconds for which PostgreSQL waits for a row that a transaction has locked."""
CALL_TIMEOUT = 60.0
"""Seconds until a request is given up: longer than MariaDB waits for such a row."""


class EnginePlanRunner(PlanRunner[Statement]):
    """Carries plans out, each in a task and with a connection of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        """No I/O.

        Raises:
            ConfigurationError: all its connections are one.
        """
        check_pool(engine)
        super().__init__()
        self._engine = engine
        self._where = f"{engine.dialect.name} ({engine.url.host or 'local'})"

    async def carried(self, plan: Plan[Statement, T], pending: Pending[T]) -> None:
        """For ``CALL_TIMEOUT`` at most."""
        working = asyncio.ensure_future(self._work(plan))
        try:
            await asyncio.wait({working}, timeout=CALL_TIMEOUT)
        except asyncio.CancelledError:  # the loop ends
            working.cancel()
            pending.set_exception(
                BackendUnavailable(what=f"{self._where}: the loop ended")
            )
            raise
        if not working.done():
            working.cancel()
            pending.set_exception(
                BackendUnavailable(what=f"{self._where} does not answer")
            )
        elif working.cancelled():
            pending.set_exception(
                BackendUnavailable(what=f"{self._where} was cancelled")
            )
        elif (error := working.exception()) is not None:
            pending.set_exception(error)
        else:
            pending.set_result(working.result())

    async def _work(self, plan: Plan[Statement, T]) -> T:
        asked = False
        try:
            async with autocommitting(self._engine) as connection:
                asked = True
                return await run_plan(plan, partial(ran, connection))
        except Exception as exc:
            raise errors.from_driver(exc, self._where, asked=asked) from exc


async def ran(
    where: AsyncConnection | AsyncSession, statement: Statement
) -> StatementResult:
    """What it does there."""
    result: Any = await where.execute(statement)
    if result.returns_rows:
        return StatementResult(rows=tuple(tuple(row) for row in result))
    return StatementResult(result.rowcount)
