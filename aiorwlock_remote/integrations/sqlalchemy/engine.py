"""Runs plans over a user's SQLAlchemy engine, and converts SQLAlchemy's errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.pool import StaticPool

from aiorwlock_remote._util.statements import run_plan
from aiorwlock_remote.core.row import Plan, StatementResult
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import BackendError, ConfigurationError
from aiorwlock_remote.integrations._row_locks import PlanRunner, from_driver_codes

T = TypeVar("T")
Statement = sa.Update | sa.Select[Any]

MAX_ROW_WAIT = 2.0
"""Seconds that PostgreSQL waits for a row that a transaction has locked."""
CALL_TIMEOUT = 60.0
"""Seconds until a plan is given up: longer than MariaDB waits for a locked row."""
# Drivers of MySQL believe a greeting that says "autocommit" whatever the server does,
# and then send nothing for AUTOCOMMIT (test_autocommit.py).
_COMMITTED_BY_REQUEST = ("mysql", "mariadb")


def from_driver(
    exc: Exception, where: str, *, asked: bool
) -> BackendError | ConfigurationError:
    """Return this library's error for an exception that SQLAlchemy raised.

    ``where``: the database, for the message; ``asked``: True if a statement was sent.
    """
    if not isinstance(exc, DBAPIError):
        if isinstance(exc, StatementError):
            # A value that SQLAlchemy refuses for the column. Its own text contains a
            # link and the statement (test_keys_that_no_driver_takes).
            cause = exc if exc.orig is None else exc.orig
            what = f"{where}: {' '.join(str(cause).split())}"
            return ConfigurationError(what=what, refused="value")
        return from_driver_codes(exc, where, asked=asked)
    lost = exc.connection_invalidated
    error = from_driver_codes(exc.orig, where, asked=asked, lost=lost)
    if isinstance(exc, DataError) and not isinstance(error, ConfigurationError):
        return ConfigurationError(what=error.what, refused="value")
    return error


def table_of(table: object) -> sa.Table:
    """Return the table of a mapped class, or a table as it is.

    Raise ``ConfigurationError`` if ``table`` is something else.
    """
    found: object = getattr(table, "__table__", table)
    if not isinstance(found, sa.Table):
        raise ConfigurationError(
            what=f"{quoted(table)} is no table and no mapped class"
        )
    return cast("sa.Table", found)


def check_pool(engine: AsyncEngine) -> None:
    """Raise ``ConfigurationError`` if all users of the engine share one connection."""
    # As with SQLite in memory: a commit or rollback of the user's would end our steps
    # (test_not_where_all_connections_are_one).
    if isinstance(engine.sync_engine.pool, StaticPool):
        raise ConfigurationError(
            what=f"{quoted(engine)}: all its connections are one",
            hint="use a database in a file, or another poolclass",
        )


@asynccontextmanager
async def committing(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Context of a connection on which ``commit`` follows each statement."""
    async with engine.connect() as connection:
        if engine.dialect.name in _COMMITTED_BY_REQUEST:
            yield connection
        else:
            # Set here, not on the engine: that would send a statement while the
            # connection is being taken from the pool, and a dead connection would stay
            # checked out (test_a_dead_connection_leaves_its_place_in_the_pool).
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")


async def commit(connection: AsyncConnection) -> None:
    """Commit the last statement, if the server has not committed it by itself."""
    if connection.dialect.name in _COMMITTED_BY_REQUEST:
        await connection.commit()


def plan_runner(engine: AsyncEngine) -> PlanRunner[Statement]:
    """Return what runs the SQL of row locks, each plan on a connection of its own."""
    check_pool(engine)
    where = f"{engine.dialect.name} ({engine.url.host or 'local'})"
    return PlanRunner(where, partial(_run_plan, engine, where), timeout=CALL_TIMEOUT)


async def _run_plan(engine: AsyncEngine, where: str, plan: Plan[Statement, T]) -> T:
    asked = False
    try:
        async with committing(engine) as connection:

            async def run(statement: Statement) -> StatementResult:
                result = await execute(connection, statement)
                await commit(connection)
                return result

            asked = True
            return await run_plan(plan, run)
    except Exception as exc:
        raise from_driver(exc, where, asked=asked) from exc


async def execute(
    where: AsyncConnection | AsyncSession, statement: Statement
) -> StatementResult:
    """Execute a statement; return its rows, or the number of rows that it changed."""
    result: Any = await where.execute(statement)
    if result.returns_rows:
        return StatementResult(rows=tuple(tuple(row) for row in result))
    return StatementResult(result.rowcount)
