"""Connections that a user lends us; see ``lines`` for what they must be spared.

And making the tables over them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TypeGuard

from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.connector import carried, hung_up
from aiorwlock_remote.backends.oracle.driver import DRIVER, Connection, Error, Pool
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.backends.oracle.schema import statements_of
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    ExternalPoolWrapper,
    borrowing,
    engine_lender,
    is_engine,
    kind_of,
)
from aiorwlock_remote.errors import ConfigurationError

WHERE = "the pool"


class OracledbPool:
    """python-oracledb's own."""

    def __init__(self, pool: Pool) -> None:
        """It is never closed or changed."""
        self._pool = pool

    @property
    def most(self) -> int | None:
        """What the pool was made with."""
        return self._pool.max

    async def borrow(self) -> Connection:
        """What the pool gives."""
        connection: Connection = await self._pool.acquire()
        return connection

    async def give_back(self, connection: Connection) -> None:
        """At once."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """The pool opens another one when it needs to."""
        with suppress(Error):
            await self._pool.drop(connection)

    def abandon(self, connection: Connection) -> None:
        """The pool goes on counting it as busy."""
        hung_up(connection)

    async def settle(self) -> None:
        """They are there already."""


class UntimedPool(ExternalPoolWrapper[Connection]):
    """``call_timeout`` is ours while we use them: 0, see ``lines``."""

    def __init__(self, lender: ExternalPool[Connection]) -> None:
        """Whatever it lends."""
        super().__init__(lender)
        self._theirs: dict[Connection, int] = {}

    async def borrow(self) -> Connection:
        """With no time limit of its own."""
        connection = await self._lender.borrow()
        self._theirs[connection] = connection.call_timeout
        connection.call_timeout = 0
        return connection

    async def give_back(self, connection: Connection) -> None:
        """As it was."""
        connection.call_timeout = self._theirs.pop(connection)
        await self._lender.give_back(connection)

    async def drop(self, connection: Connection) -> None:
        """Nobody uses it again."""
        del self._theirs[connection]
        await self._lender.drop(connection)

    def abandon(self, connection: Connection) -> None:
        """Nobody uses it again."""
        del self._theirs[connection]
        self._lender.abandon(connection)


def lender_of(given: object) -> ExternalPool[Connection]:
    """What lends connections of this pool or engine.

    Raises:
        ConfigurationError: it is neither, or not for asyncio.
    """
    if _is_pool(given):
        return UntimedPool(OracledbPool(given))
    if is_engine(given) and given.dialect.driver == "oracledb":
        meant = partial(errors.of_connecting, where=WHERE, known=False)
        return UntimedPool(engine_lender(given, hung_up, meant))
    raise ConfigurationError(
        what=f"{kind_of(given)} is not an asyncio pool of python-oracledb",
        hint="OracleBackend(oracledb.create_pool_async(…)), or SQLAlchemy's "
        "create_async_engine('oracle+oracledb://…')",
    )


async def make_tables(lender: ExternalPool[Connection], options: Options) -> None:
    """Both; one that is there stays as it is.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    try:
        async with borrowing(lender, options) as lines:
            for statement in statements_of(options.schema):
                work = partial(_run, statement)
                # No call of ours is cancelled: see ``lines``.
                await asyncio.shield(carried(lines, work, options))
    except (Error, OSError) as exc:
        raise errors.from_driver(exc, options.where) from exc


async def _run(statement: str, connection: Connection) -> None:
    try:
        with connection.cursor() as cursor:
            await cursor.execute(statement, {})
    except Error as exc:
        if errors.code_of(exc) != errors.THERE_ALREADY:
            raise


def _is_pool(given: object) -> TypeGuard[Pool]:
    return isinstance(given, DRIVER.AsyncConnectionPool)
