"""sqlalchemy-dlock: the servers' session locks, used as documented."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy_dlock.factory import create_async_sadlock

from benchmarks.shared.client import Client, Cycle
from benchmarks.sql.adapters.advisory import MOST

PATIENCE = {"postgresql": None, "mariadb": 3600}
"""Seconds to wait: MariaDB wants a number."""


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
        patience = PATIENCE[self._connection.dialect.name]
        await self._lock.acquire(timeout=patience)

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
    """An engine with as many connections as tasks."""
    del lease
    scheme, _, rest = url.partition("://")
    driver = {"postgresql": "asyncpg", "mariadb": "asyncmy"}[scheme]
    engine = create_async_engine(f"{scheme}+{driver}://{rest}", pool_size=MOST)
    yield _Client(engine)
    await engine.dispose()
