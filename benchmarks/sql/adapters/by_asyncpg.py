"""PostgreSQL by asyncpg: the floor, session locks, and the floor of a notification."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from zlib import crc32

import asyncpg

from benchmarks.harness.lock import Client, Cycle
from benchmarks.sql.adapters.floor import (
    CONNECTIONS,
    SESSION_CONNECTIONS,
    Connections,
    FloorClient,
)


@asynccontextmanager
async def connect_floor(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the floor, with as many connections as our own store has."""
    del lease
    pool: Connections[Any] = Connections(lambda: asyncpg.connect(url), CONNECTIONS)
    yield FloorClient(
        pool,
        lambda connection, text, values: connection.execute(text, *values),
        ("$1", "$2", "$3"),
    )
    for connection in pool.opened:
        await connection.close()


# ----------------------------------------------------------------- pg_advisory_lock


class _AdvisoryClient:
    def __init__(self, pool: Connections[Any]) -> None:
        self._pool = pool

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _AdvisoryLock(self._pool, key)


class _AdvisoryLock:
    """A lock of a session of PostgreSQL.

    Nothing is written: there is no commit to wait for, and no lease, fence or queue to
    be seen. The lock ends with its connection.
    """

    def __init__(self, pool: Connections[Any], key: str) -> None:
        self._pool = pool
        self._number = crc32(key.encode())
        self._connection: Any = None

    async def __aenter__(self) -> None:
        self._connection = await self._pool.take()
        await self._connection.fetchval("SELECT pg_advisory_lock($1)", self._number)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        unlock = "SELECT pg_advisory_unlock($1)"
        assert await self._connection.fetchval(unlock, self._number)
        self._pool.put(self._connection)


@asynccontextmanager
async def connect_advisory(url: str, lease: float) -> AsyncIterator[Client]:
    """Open as many connections as tasks."""
    del lease
    pool: Connections[Any] = Connections(
        lambda: asyncpg.connect(url), SESSION_CONNECTIONS
    )
    yield _AdvisoryClient(pool)
    for connection in pool.opened:
        connection.terminate()


# ------------------------------------------------------------ a hand-over by NOTIFY

NOTIFY_TABLE = "CREATE TABLE batons (key text PRIMARY KEY, holder text, waiter text)"
_NEW = "INSERT INTO batons (key) VALUES ($1) ON CONFLICT DO NOTHING"
_ASK = """
UPDATE batons SET holder = COALESCE(holder, $2),
  waiter = CASE WHEN holder IS NULL THEN NULL ELSE $2 END
WHERE key = $1 RETURNING holder
"""
_HAND_OVER = """
UPDATE batons SET holder = waiter, waiter = NULL WHERE key = $1
RETURNING CASE WHEN holder IS NOT NULL THEN pg_notify('baton_' || holder, key) END
"""


class _NotifyClient:
    """A row that names its holder and its waiter, and NOTIFY.

    The UPDATE that releases makes the waiter the holder and notifies it, so that the
    waiter has the lock without another request. There is no lease and no fence, and two
    processes at most take part.
    """

    def __init__(self, connection: Any, client_id: str) -> None:  # noqa: ANN401 - asyncpg has no types
        self.connection = connection
        self.client_id = client_id
        self.granted: dict[str, asyncio.Event] = {}

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        self.granted[key] = asyncio.Event()
        await self.connection.execute(_NEW, key)
        return _NotifyLock(self, key)

    def on_notify(self, _: Any, __: int, ___: str, key: str) -> None:  # noqa: ANN401 - as above
        self.granted[key].set()


class _NotifyLock:
    def __init__(self, client: _NotifyClient, key: str) -> None:
        self._client = client
        self._key = key

    async def __aenter__(self) -> None:
        client, granted = self._client, self._client.granted[self._key]
        granted.clear()
        holder = await client.connection.fetchval(_ASK, self._key, client.client_id)
        if holder != client.client_id:
            await granted.wait()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.connection.execute(_HAND_OVER, self._key)


@asynccontextmanager
async def connect_notify(url: str, lease: float) -> AsyncIterator[Client]:
    """Open two connections: one for requests, one that listens."""
    del lease
    client = _NotifyClient(await asyncpg.connect(url), str(os.getpid()))
    listener = await asyncpg.connect(url)
    await listener.add_listener(f"baton_{client.client_id}", client.on_notify)
    yield client
    await listener.close()
    await client.connection.close()
