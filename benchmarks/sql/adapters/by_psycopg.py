"""The floor of PostgreSQL by psycopg 3: what the other driver costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from benchmarks.harness.lock import Client
from benchmarks.sql.adapters.floor import CONNECTIONS, Connections, FloorClient


@asynccontextmanager
async def connect_floor(url: str, lease: float) -> AsyncIterator[Client]:
    """Open cursors, each of a connection of its own; all statements are prepared."""
    del lease

    async def open_cursor() -> Any:  # noqa: ANN401 - a cursor of any rows
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        return connection.cursor()

    pool: Connections[Any] = Connections(open_cursor, CONNECTIONS)
    yield FloorClient(
        pool, lambda cursor, text, values: cursor.execute(text, values, prepare=True)
    )
    for cursor in pool.opened:
        await cursor.connection.close()
