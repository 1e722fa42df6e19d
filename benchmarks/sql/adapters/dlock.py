"""sqlalchemy-dlock: session locks of the servers, used as its documentation shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy_dlock.factory import create_async_sadlock

from benchmarks.harness.lock import Client, Cycle
from benchmarks.sql.adapters.floor import SESSION_CONNECTIONS

TIMEOUTS = {"postgresql": None, "mariadb": 3600}
"""Seconds to wait for a lock; MariaDB cannot wait without a limit."""


class _Client:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._engine, key)


class _Lock:
    def __init__(self, engine: AsyncEngine, key: str) -> None:
        self._engine = engine
        self._key = key
        self._connection: AsyncConnection
        self._lock: Any = None

    async def __aenter__(self) -> None:
        self._connection = await self._engine.connect()
        self._lock = create_async_sadlock(self._connection, self._key)
        timeout = TIMEOUTS[self._connection.dialect.name]
        await self._lock.acquire(timeout=timeout)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._lock.release()
        await self._connection.close()


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open an engine with as many connections as tasks."""
    del lease
    scheme, _, rest = url.partition("://")
    driver = {"postgresql": "asyncpg", "mariadb": "asyncmy"}[scheme]
    engine = create_async_engine(
        f"{scheme}+{driver}://{rest}", pool_size=SESSION_CONNECTIONS
    )
    yield _Client(engine)
    await engine.dispose()
