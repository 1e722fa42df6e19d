"""The same pair by psycopg 3 on asyncio: what the other driver costs."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import psycopg

from benchmarks.shared.client import Client, Cycle
from benchmarks.shared.row import row
from benchmarks.sql.adapters.bare_asyncpg import CONNECTIONS
from benchmarks.sql.adapters.stock import Stock

TAKE = (
    "INSERT INTO mutex_locks (resource_type, resource_id, ticket) VALUES (%s, %s, %s)"
)
FREE = """
DELETE FROM mutex_locks WHERE resource_type = %s AND resource_id = %s AND ticket = %s
"""


class _Client:
    def __init__(self, stock: Stock[Any]) -> None:
        self._stock = stock

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._stock, key)


class _Lock:
    def __init__(self, stock: Stock[Any], key: str) -> None:
        self._stock = stock
        self._key = row(key)
        self._ticket = ""

    async def __aenter__(self) -> None:
        self._ticket = secrets.token_hex(16)
        await self._ask(TAKE)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._ask(FREE)

    async def _ask(self, statement: str) -> None:
        cursor = await self._stock.take()
        try:
            await cursor.execute(statement, (*self._key, self._ticket), prepare=True)
        finally:
            self._stock.give(cursor)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Cursors, each of a connection of its own; all is prepared at once."""
    del lease

    async def dial() -> Any:  # noqa: ANN401 - a cursor
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        return connection.cursor()

    stock: Stock[Any] = Stock(dial, CONNECTIONS)
    yield _Client(stock)
    for cursor in stock.opened:
        await cursor.connection.close()
