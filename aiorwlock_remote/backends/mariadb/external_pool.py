"""Connections that a user lends us, of asyncmy's pool or of an engine over it.

And making the tables over them.
"""

from __future__ import annotations

from functools import partial

from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.connector import CUSTOM, healthy, hung_up
from aiorwlock_remote.backends.mariadb.driver import POOL, Connection, Pool, run
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.backends.mariadb.schema import statements_of
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    HealthCheckedPool,
    engine_lender,
    is_engine,
    kind_of,
)
from aiorwlock_remote.cas.driver.runner import run_in_sequence
from aiorwlock_remote.errors import ConfigurationError

WHERE = "the pool"


class AsyncmyPool:
    """asyncmy's own pool."""

    def __init__(self, pool: Pool) -> None:
        """It belongs to the running loop."""
        self._pool = pool

    @property
    def most(self) -> int | None:
        """What the pool was made with; 0 is no limit."""
        most: int = self._pool.maxsize
        return most or None

    async def borrow(self) -> Connection:
        """What the pool gives."""
        return await self._pool.acquire()

    async def give_back(self, connection: Connection) -> None:
        """At once."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """As ``abandon``."""
        self.abandon(connection)

    def abandon(self, connection: Connection) -> None:
        """The pool forgets one that is closed, and opens another when it needs to."""
        hung_up(connection)
        self._pool.release(connection)

    async def settle(self) -> None:
        """They are there already."""


def lender_of(given: object) -> ExternalPool[Connection]:
    """What lends connections of this pool or engine.

    Raises:
        ConfigurationError: it is neither, or not over asyncmy.
    """
    if isinstance(given, POOL):
        return HealthCheckedPool(AsyncmyPool(given), healthy)
    if is_engine(given) and given.dialect.driver == "asyncmy":
        meant = partial(errors.of_connecting, where=WHERE)
        return HealthCheckedPool(engine_lender(given, hung_up, meant), healthy)
    raise ConfigurationError(
        what=f"{kind_of(given)} is not a pool of asyncmy",
        hint="MariadbBackend(await asyncmy.create_pool(…)), or SQLAlchemy's "
        "create_async_engine('mariadb+asyncmy://…')",
    )


async def make_tables(lender: ExternalPool[Connection], options: Options) -> None:
    """Both, where they are not there.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    works = [partial(_run, statement) for statement in statements_of(options.tables)]
    await run_in_sequence(lender, options, CUSTOM, works)


async def _run(statement: str, connection: Connection) -> None:
    await run(connection, statement)
