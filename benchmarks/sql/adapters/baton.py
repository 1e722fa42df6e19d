"""A row that says who has it and who waits, and NOTIFY: the floor of being told.

One UPDATE to ask, one to give back, which makes the other the holder and tells it: it
is in without asking again. No lease, no fence, two processes at most.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import asyncpg

from benchmarks.shared.client import Client, Cycle

TABLE = "CREATE TABLE batons (key text PRIMARY KEY, holder text, waiter text)"
_NEW = "INSERT INTO batons (key) VALUES ($1) ON CONFLICT DO NOTHING"
_ASK = """
UPDATE batons SET holder = COALESCE(holder, $2),
  waiter = CASE WHEN holder IS NULL THEN NULL ELSE $2 END
WHERE key = $1 RETURNING holder
"""
_GIVE = """
UPDATE batons SET holder = waiter, waiter = NULL WHERE key = $1
RETURNING CASE WHEN holder IS NOT NULL THEN pg_notify('baton_' || holder, key) END
"""


class _Client:
    def __init__(self, connection: Any, me: str) -> None:  # noqa: ANN401 - asyncpg's
        self.connection = connection
        self.me = me
        self.told: dict[str, asyncio.Event] = {}

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        self.told[key] = asyncio.Event()
        await self.connection.execute(_NEW, key)
        return _Lock(self, key)

    def hear(self, _: Any, __: int, ___: str, key: str) -> None:  # noqa: ANN401 - as above
        self.told[key].set()


class _Lock:
    def __init__(self, client: _Client, key: str) -> None:
        self._client = client
        self._key = key

    async def __aenter__(self) -> None:
        client, told = self._client, self._client.told[self._key]
        told.clear()
        if await client.connection.fetchval(_ASK, self._key, client.me) != client.me:
            await told.wait()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.connection.execute(_GIVE, self._key)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Two connections: one asks, one listens."""
    del lease
    client = _Client(await asyncpg.connect(url), str(os.getpid()))
    listener = await asyncpg.connect(url)
    await listener.add_listener(f"baton_{client.me}", client.hear)
    yield client
    await listener.close()
    await client.connection.close()
