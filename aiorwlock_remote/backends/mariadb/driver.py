"""asyncmy, whose types say little: what we use of it, all in one place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import asyncmy
from asyncmy import connection as connections
from asyncmy import cursors, errors, pool

from aiorwlock_remote.backends.mariadb.statements import COMMIT, ROLLBACK

# Objects of the driver's. Where one stands in a signature, its name says which.
Connection = Any
Pool = Any
Row = tuple[Any, ...]

POOL: type[Any] = pool.Pool
CONNECTION: type[Any] = connections.Connection
Error: type[Exception] = errors.MySQLError
DRIVER: Any = asyncmy
_CURSOR: Any = cursors.Cursor


class MariadbResult(NamedTuple):
    """What one statement tells: rows changed, ``LAST_INSERT_ID``, rows found."""

    changed: int
    told: int
    rows: list[Row]


async def run(connection: Connection, *statements: str) -> list[MariadbResult]:
    """Several statements in one request, until one of them fails.

    With autocommit off a transaction is begun by whatever is asked, and is not to be
    left open: it is committed, or rolled back if a statement fails.
    """
    ended = statements[-1] in {COMMIT, ROLLBACK} or connection.get_autocommit()
    try:
        return await _answers(
            connection, statements if ended else (*statements, COMMIT)
        )
    except Error:
        if not ended and connection.connected:
            with suppress(Error):
                await _answers(connection, (ROLLBACK,))
        raise


async def _answers(
    connection: Connection, statements: Sequence[str]
) -> list[MariadbResult]:
    answers: list[MariadbResult] = []
    async with connection.cursor(_CURSOR) as cursor:
        await cursor.execute(";".join(statements))
        while True:
            rows: list[Row] = list(await cursor.fetchall())
            answers.append(MariadbResult(cursor.rowcount, cursor.lastrowid, rows))
            if not await cursor.nextset():
                break
        # asyncmy takes a status of 0, no autocommit and no transaction, for none that
        # was told, and keeps the one before, of an open transaction. Its pool closes
        # such a connection: each request would open another one (test_pool.py).
        connection.server_status = cursor._result.server_status  # noqa: SLF001
    return answers


async def first(connection: Connection, statement: str) -> Row | None:
    """The first row that one statement tells, on a connection of the user's."""
    async with connection.cursor(_CURSOR) as cursor:
        await cursor.execute(statement)
        row: Row | None = await cursor.fetchone()
        return row
