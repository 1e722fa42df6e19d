"""The bare pair in MariaDB, by asyncmy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncmy

from benchmarks.shared.client import Client
from benchmarks.sql.adapters.bare import CONNECTIONS, BareClient, Values
from benchmarks.sql.adapters.stock import Stock


async def dial(url: str) -> Any:  # noqa: ANN401 - asyncmy's
    """A connection; each statement is a transaction."""
    parts = urlsplit(url)
    return await asyncmy.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        database=parts.path.strip("/"),
        autocommit=True,
    )


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """As many connections as our own store has."""
    del lease
    stock: Stock[Any] = Stock(lambda: dial(url), CONNECTIONS)
    yield BareClient(stock, _execute)
    for connection in stock.opened:
        connection.close()


async def _execute(connection: Any, text: str, values: Values) -> None:  # noqa: ANN401
    async with connection.cursor() as cursor:
        await cursor.execute(text, values)
