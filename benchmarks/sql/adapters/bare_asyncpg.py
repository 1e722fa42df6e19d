"""A bare INSERT and DELETE of the published row, by asyncpg: the floor.

No lease, no fence, no queue, and nobody can wait for it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import asyncpg

from benchmarks.shared.client import Client, Cycle
from benchmarks.shared.row import row
from benchmarks.sql.adapters.stock import Stock

TAKE = (
    "INSERT INTO mutex_locks (resource_type, resource_id, ticket) VALUES ($1, $2, $3)"
)
FREE = """
DELETE FROM mutex_locks WHERE resource_type = $1 AND resource_id = $2 AND ticket = $3
"""
CONNECTIONS = 8
"""As many as our own store opens at most."""


class _Client:
    def __init__(self, stock: Stock[Any]) -> None:
        self._stock = stock

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._stock, key)


class _Lock:
    """One for each task."""

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
        connection = await self._stock.take()
        try:
            await connection.execute(statement, *self._key, self._ticket)
        finally:
            self._stock.give(connection)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """As many connections as our own store has."""
    del lease
    stock: Stock[Any] = Stock(lambda: asyncpg.connect(url), CONNECTIONS)
    yield _Client(stock)
    for connection in stock.opened:
        await connection.close()
