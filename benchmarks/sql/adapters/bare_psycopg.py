"""The same pair by psycopg 3 on asyncio: what the other driver costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from benchmarks.shared.client import Client
from benchmarks.sql.adapters.bare import CONNECTIONS, BareClient
from benchmarks.sql.adapters.stock import Stock


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Cursors, each of a connection of its own; all is prepared at once."""
    del lease

    async def dial() -> Any:  # noqa: ANN401 - a cursor
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        return connection.cursor()

    stock: Stock[Any] = Stock(dial, CONNECTIONS)
    yield BareClient(
        stock, lambda cursor, text, values: cursor.execute(text, values, prepare=True)
    )
    for cursor in stock.opened:
        await cursor.connection.close()
