"""MariaDB's own session locks, by asyncmy: a connection for each task inside.

Nothing is written: no commit to wait for, and no lease, fence or queue to be seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from benchmarks.shared.client import Client, Cycle
from benchmarks.sql.adapters.advisory import MOST
from benchmarks.sql.adapters.bare_asyncmy import dial
from benchmarks.sql.adapters.stock import Stock

PATIENCE = 3600
"""Seconds to wait for it: it wants a number."""


class _Client:
    def __init__(self, stock: Stock[Any]) -> None:
        self._stock = stock

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._stock, key)


class _Lock:
    def __init__(self, stock: Stock[Any], key: str) -> None:
        self._stock = stock
        self._key = key
        self._connection: Any = None

    async def __aenter__(self) -> None:
        self._connection = await self._stock.take()
        assert await self._ask("SELECT GET_LOCK(%s, %s)", self._key, PATIENCE)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._ask("SELECT RELEASE_LOCK(%s)", self._key)
        self._stock.give(self._connection)

    async def _ask(self, statement: str, *values: object) -> bool:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement, values)
            (got,) = await cursor.fetchone()
        return bool(got)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """As many connections as tasks."""
    del lease
    stock: Stock[Any] = Stock(lambda: dial(url), MOST)
    yield _Client(stock)
    for connection in stock.opened:
        connection.close()
