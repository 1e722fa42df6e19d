"""Clients of users, and links that are opened by them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis, Sentinel

from aiorwlock_remote.backends.redis.clients.connections import client_connections
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import Heard
from tests.backends.redis.some_scripts import BOTH
from tests.loops import LOOPS

ON_ASYNCIO = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend", [loop for loop in LOOPS if str(loop.id) != "trio"]
    ),
]
"""Where redis-py works."""


@asynccontextmanager
async def client_of(url: str, **settings: Any) -> AsyncIterator[Redis]:  # noqa: ANN401 - redis-py's
    """A user's client, which its user closes."""
    client: Redis = Redis.from_url(url, **settings)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def sentinel_client(ports: Iterable[int], name: str) -> AsyncIterator[Redis]:
    """A user's client of the primary that these Sentinels call ``name``."""
    hosts = [("127.0.0.1", port) for port in ports]
    sentinel = Sentinel(hosts)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(name)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            for each in (client, *sentinel.sentinels):
                await each.aclose()


@asynccontextmanager
async def linked_by(client: Redis, heard: Heard) -> AsyncIterator[RedisConnection]:
    """A link over a connection as the client makes them."""
    options, lines = client_connections(client.connection_pool, 5.0)
    link = RedisConnection(
        options,
        current_event_loop(),
        BOTH,
        on_message=heard.message,
        on_reconnect=heard.reconnected,
        dial=lines.dial(None),
    )
    await link.open()
    try:
        yield link
    finally:
        await link.aclose()
