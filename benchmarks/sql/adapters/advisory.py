"""PostgreSQL's own session locks, by asyncpg: a connection for each task inside.

Nothing is written: no commit to wait for, and no lease, fence or queue to be seen. The
lock goes with the connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from zlib import crc32

import asyncpg

from benchmarks.shared.client import Client, Cycle
from benchmarks.sql.adapters.stock import Stock

MOST = 80
"""Connections; each task that waits needs one."""


class _Client:
    def __init__(self, stock: Stock[Any]) -> None:
        self._stock = stock

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._stock, key)


class _Lock:
    def __init__(self, stock: Stock[Any], key: str) -> None:
        self._stock = stock
        self._number = crc32(key.encode())
        self._connection: Any = None

    async def __aenter__(self) -> None:
        self._connection = await self._stock.take()
        await self._connection.fetchval("SELECT pg_advisory_lock($1)", self._number)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        free = "SELECT pg_advisory_unlock($1)"
        assert await self._connection.fetchval(free, self._number)
        self._stock.give(self._connection)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """As many connections as tasks."""
    del lease
    stock: Stock[Any] = Stock(lambda: asyncpg.connect(url), MOST)
    yield _Client(stock)
    for connection in stock.opened:
        connection.terminate()
