"""Two lightweight transactions by the driver itself: the published statements.

``floor``: nobody can wait for it. ``floor and a read``: a fence that rises is the
ballot of the first transaction, which only a read tells. ``naive loop``: whoever is
refused tries again after a pause, as programs with the published statements do, or
(``eager``) at once.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType

from cassandra import ConsistencyLevel

from benchmarks.cassandra.adapters.driver import Wire, session
from benchmarks.shared.client import Client, Cycle
from benchmarks.shared.row import row

TAKE = """
INSERT INTO mutex_locks (resource_type, resource_id, ticket, acquired_at)
VALUES (?, ?, ?, toTimestamp(now())) IF NOT EXISTS
"""
FREE = (
    "DELETE FROM mutex_locks WHERE resource_type = ? AND resource_id = ? IF ticket = ?"
)
BALLOT = """
SELECT writetime(ticket) FROM mutex_locks WHERE resource_type = ? AND resource_id = ?
"""
PAUSE = 0.025, 0.075
"""Seconds between two tries of the naive loop."""


class _Client:
    def __init__(
        self,
        wire: Wire,
        *,
        pause: tuple[float, float] | None = None,
        reads: bool = False,
    ) -> None:
        self.wire = wire
        self.pause = pause
        self.reads = reads
        self.take = wire.prepare(TAKE)
        self.free = wire.prepare(FREE)
        self.ballot = wire.prepare(BALLOT, ConsistencyLevel.ONE)

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self, key)


class _Lock:
    """One for each task."""

    def __init__(self, client: _Client, key: str) -> None:
        self._client = client
        self._key = row(key)
        self._ticket = secrets.token_hex(16)

    async def __aenter__(self) -> None:
        client = self._client
        while not await self._asked(client.take, self._ticket):
            assert client.pause, "the floor is for one task to a key"
            await asyncio.sleep(random.uniform(*client.pause))
        if client.reads:  # of several replicas one may not have heard of it yet
            while not await client.wire.ask(client.ballot, *self._key):
                pass

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._asked(self._client.free, self._ticket)

    async def _asked(self, statement: object, ticket: str) -> bool:
        rows = await self._client.wire.ask(statement, *self._key, ticket)
        return bool(rows[0][0])


@asynccontextmanager
async def _connect(
    url: str,
    lease: float,
    *,
    pause: tuple[float, float] | None = None,
    reads: bool = False,
) -> AsyncIterator[Client]:
    del lease
    with session(url) as opened:
        wire = Wire(opened, asyncio.get_running_loop())
        yield _Client(wire, pause=pause, reads=reads)


floor = _connect
floor_and_read = partial(_connect, reads=True)
naive = partial(_connect, pause=PAUSE)
eager = partial(_connect, pause=(0.0, 0.0))
