"""MariaDB and MySQL by asyncmy: the floor, and the session locks of ``GET_LOCK``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import asyncmy

from benchmarks.harness.lock import Client, Cycle
from benchmarks.sql.adapters.floor import (
    CONNECTIONS,
    SESSION_CONNECTIONS,
    Connections,
    FloorClient,
    Values,
)

GET_LOCK_TIMEOUT = 3600
"""Seconds; ``GET_LOCK`` cannot wait without a limit."""


async def _open(url: str) -> Any:  # noqa: ANN401 - asyncmy has no types
    """Open a connection on which each statement is a transaction."""
    parts = urlsplit(url)
    return await asyncmy.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        database=parts.path.strip("/"),
        autocommit=True,
    )


async def _execute(connection: Any, text: str, values: Values) -> None:  # noqa: ANN401
    async with connection.cursor() as cursor:
        await cursor.execute(text, values)


@asynccontextmanager
async def connect_floor(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the floor, with as many connections as our own store has."""
    del lease
    pool: Connections[Any] = Connections(lambda: _open(url), CONNECTIONS)
    yield FloorClient(pool, _execute)
    for connection in pool.opened:
        connection.close()


class _SessionClient:
    def __init__(self, pool: Connections[Any]) -> None:
        self._pool = pool

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _SessionLock(self._pool, key)


class _SessionLock:
    """A lock of a session: it writes nothing and ends with the session."""

    def __init__(self, pool: Connections[Any], key: str) -> None:
        self._pool = pool
        self._key = key
        self._connection: Any = None

    async def __aenter__(self) -> None:
        self._connection = await self._pool.take()
        assert await self._ask("SELECT GET_LOCK(%s, %s)", self._key, GET_LOCK_TIMEOUT)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._ask("SELECT RELEASE_LOCK(%s)", self._key)
        self._pool.put(self._connection)

    async def _ask(self, statement: str, *values: object) -> bool:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement, values)
            (answer,) = await cursor.fetchone()
        return bool(answer)


@asynccontextmanager
async def connect_get_lock(url: str, lease: float) -> AsyncIterator[Client]:
    """Open as many connections as tasks."""
    del lease
    pool: Connections[Any] = Connections(lambda: _open(url), SESSION_CONNECTIONS)
    yield _SessionClient(pool)
    for connection in pool.opened:
        connection.close()
