"""Connections that a user lends us, of asyncpg's pool or of an engine over it.

And making the tables over them.
"""

from __future__ import annotations

from functools import partial

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.connector import CUSTOM, healthy, terminate
from aiorwlock_remote.backends.postgresql.driver import DRIVER, Connection, Pool
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.schema import statements_of
from aiorwlock_remote.cas.driver.external_pool import (
    BackgroundReturnPool,
    ExternalPool,
    HealthCheckedPool,
    engine_lender,
    is_engine,
    kind_of,
)
from aiorwlock_remote.cas.driver.pool import spawn_detached
from aiorwlock_remote.cas.driver.runner import run_in_sequence
from aiorwlock_remote.errors import ConfigurationError

WHERE = "the pool"


class AsyncpgPool:
    """asyncpg's own pool."""

    def __init__(self, pool: Pool) -> None:
        """It is never closed or changed."""
        self._pool = pool

    @property
    def most(self) -> int | None:
        """What the pool was made with."""
        most: int = self._pool.get_max_size()
        return most

    async def borrow(self) -> Connection:
        """What the pool gives."""
        return await self._pool.acquire()

    async def give_back(self, connection: Connection) -> None:
        """The pool resets it."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """The pool opens another one when it needs to."""
        terminate(connection)
        await self._pool.release(connection)

    def abandon(self, connection: Connection) -> None:
        """As ``drop``, soon."""
        spawn_detached(self.drop(connection))

    async def settle(self) -> None:
        """They are there already."""


def external_pool_for(given: object) -> ExternalPool[Connection]:
    """What lends connections of this pool or engine.

    Raises:
        ConfigurationError: neither a pool of asyncpg nor an async engine over it.
    """
    if isinstance(given, DRIVER.Pool):
        return BackgroundReturnPool(AsyncpgPool(given), terminate)
    if is_engine(given) and given.dialect.driver == "asyncpg":
        return HealthCheckedPool(
            engine_lender(given, terminate, _meant, asks=False), healthy
        )
    raise ConfigurationError(
        what=f"{kind_of(given)} is no pool of asyncpg, nor an async engine over it",
        hint="asyncpg.create_pool(…), create_async_engine('postgresql+asyncpg://…')",
    )


async def create_tables(lender: ExternalPool[Connection], options: Options) -> None:
    """Both, where they are not there.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    works = [partial(_run, statement) for statement in statements_of(options.schema)]
    await run_in_sequence(lender, options, CUSTOM, works)


async def _run(statement: str, connection: Connection) -> None:
    await connection.execute(statement)


def _meant(exc: BaseException) -> errors.Failure:
    """SQLAlchemy's errors are made of asyncpg's."""
    return errors.of_connecting(exc.__cause__ or exc, WHERE)
