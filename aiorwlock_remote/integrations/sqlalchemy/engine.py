"""What SQLAlchemy says → what we raise: mostly what the driver under it said.

Connections of a user's engine, and pools of them that cannot be used.

Statements of row locks over a user's engine, beyond any caller's cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Select, Update
from sqlalchemy.exc import DataError, DBAPIError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.pool import StaticPool

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.core.row import Plan, StatementResult
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.integrations import _row_locks as driver_codes
from aiorwlock_remote.integrations._row_locks import PlanRunner


def from_driver(
    exc: Exception, where: str, *, asked: bool
) -> BackendError | ConfigurationError:
    """The error of ours for what was raised for one request; see ``_driver_codes``."""
    if not isinstance(exc, DBAPIError):
        if isinstance(exc, StatementError):  # a value that is no good for the column
            said = exc if exc.orig is None else exc.orig
            return ConfigurationError(what=f"{where}: {' '.join(str(said).split())}")
        return driver_codes.from_driver_codes(exc, where, asked=asked)
    lost = exc.connection_invalidated
    error = driver_codes.from_driver_codes(exc.orig, where, asked=asked, lost=lost)
    if isinstance(exc, DataError) and not isinstance(error, ConfigurationError):
        return ConfigurationError(what=error.what)
    return error


def check_pool(engine: AsyncEngine) -> None:
    """Refuse one that gives all the same connection: it would end others' steps.

    Raises:
        ConfigurationError: it is that of SQLite in memory.
    """
    if isinstance(engine.sync_engine.pool, StaticPool):
        raise ConfigurationError(
            what=f"{quoted(engine)} cannot be used: all its connections are one",
            hint="a database in a file, or another poolclass",
        )


@asynccontextmanager
async def autocommitting(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection of its own, each of whose statements commits.

    Told to do so when there is one: an engine with that option asks the server before
    anybody could give back a connection that turns out to be dead.
    """
    async with engine.connect() as connection:
        yield await connection.execution_options(isolation_level="AUTOCOMMIT")


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
                return await run_plan(plan, partial(execute, connection))
        except Exception as exc:
            raise from_driver(exc, self._where, asked=asked) from exc


async def execute(
    where: AsyncConnection | AsyncSession, statement: Statement
) -> StatementResult:
    """What it does there."""
    result: Any = await where.execute(statement)
    if result.returns_rows:
        return StatementResult(rows=tuple(tuple(row) for row in result))
    return StatementResult(result.rowcount)
