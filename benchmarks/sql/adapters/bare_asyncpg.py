"""The bare pair in PostgreSQL, by asyncpg."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.shared.client import Client
from benchmarks.sql.adapters.bare import CONNECTIONS, BareClient
from benchmarks.sql.adapters.stock import Stock


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """As many connections as our own store has."""
    del lease
    stock: Stock[Any] = Stock(lambda: asyncpg.connect(url), CONNECTIONS)
    yield BareClient(
        stock,
        lambda connection, text, values: connection.execute(text, *values),
        ("$1", "$2", "$3"),
    )
    for connection in stock.opened:
        await connection.close()
