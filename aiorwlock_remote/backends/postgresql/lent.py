"""Connections of a user's pool or engine, which is never closed or changed."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.dialling import terminate
from aiorwlock_remote.backends.postgresql.driver import DRIVER, Connection, Pool
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError


class LentPool:
    """A ``Source`` over a pool of asyncpg."""

    def __init__(self, pool: Pool, options: Options) -> None:
        """Of the running loop."""
        self._pool = pool
        self._options = options

    async def take(self) -> Connection:
        """What the pool gives."""
        seconds, where = self._options.connect_timeout, self._options.where
        try:
            return await self._pool.acquire(timeout=seconds)
        except TimeoutError:
            raise BackendUnavailable(
                what=f"{where}: no connection in {seconds:g} s", nothing_done=True
            ) from None
        except Exception as exc:
            raise errors.of_connecting(exc, where) from exc

    async def give_back(self, connection: Connection) -> None:
        """The pool resets it."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """The pool opens another one when it needs to."""
        terminate(connection)
        await self._pool.release(connection)

    async def close(self) -> None:
        """It is not ours."""

    def hang_up(self) -> None:
        """It is not ours."""


class LentEngine:
    """A ``Source`` over an async engine of SQLAlchemy, for postgresql+asyncpg.

    What it pools are connections of asyncpg, each lent with SQLAlchemy's around it.
    """

    def __init__(self, engine: Any, options: Options) -> None:  # noqa: ANN401 - AsyncEngine, an extra
        """Of the running loop."""
        self._engine = engine
        self._options = options
        self._around: dict[Connection, Any] = {}

    async def take(self) -> Connection:
        """What the engine's pool gives."""
        seconds, where = self._options.connect_timeout, self._options.where
        try:
            async with asyncio.timeout(seconds):
                around = await self._engine.connect()
                raw = await around.get_raw_connection()
        except TimeoutError:
            raise BackendUnavailable(
                what=f"{where}: no connection in {seconds:g} s", nothing_done=True
            ) from None
        except Exception as exc:
            cause = getattr(exc, "orig", None)
            raise errors.of_connecting(getattr(cause, "__cause__", exc), where) from exc
        connection: Connection = raw.driver_connection
        self._around[connection] = around
        return connection

    async def give_back(self, connection: Connection) -> None:
        """To the engine's pool; nothing was begun, so nothing is rolled back."""
        await self._around.pop(connection).close()

    async def drop(self, connection: Connection) -> None:
        """The pool opens another one when it needs to."""
        terminate(connection)
        around = self._around.pop(connection)
        await around.invalidate()
        await around.close()

    async def close(self) -> None:
        """It is not ours."""

    def hang_up(self) -> None:
        """It is not ours."""


def source_of(lent: object, options: Options) -> LentPool | LentEngine:
    """Over whatever the user has.

    Raises:
        ConfigurationError: neither a pool of asyncpg nor an async engine over it.
    """
    if isinstance(lent, DRIVER.Pool):
        return LentPool(lent, options)
    known: Any = sys.modules.get("sqlalchemy.ext.asyncio")  # never imported by us
    if known is not None and isinstance(lent, known.AsyncEngine):
        engine: Any = lent
        if (engine.dialect.name, engine.dialect.driver) == ("postgresql", "asyncpg"):
            return LentEngine(engine, options)
    raise ConfigurationError(
        what=f"{type(lent).__qualname__} is no pool of asyncpg, nor an async engine",
        hint="asyncpg.create_pool(…), create_async_engine('postgresql+asyncpg://…')",
    )
