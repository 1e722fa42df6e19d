"""Two lightweight transactions by cassandra-driver itself: the published statements.

The session is awaited on asyncio in the simplest decent way: the driver's own thread
reads, and wakes the event loop once for each answer.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from benchmarks.harness.lock import Client, Cycle, row_of

REQUEST_TIMEOUT = 2.0
PROTOCOL = 5
INSERT = """
INSERT INTO mutex_locks (resource_type, resource_id, ticket, acquired_at)
VALUES (?, ?, ?, toTimestamp(now())) IF NOT EXISTS
"""
DELETE = (
    "DELETE FROM mutex_locks WHERE resource_type = ? AND resource_id = ? IF ticket = ?"
)
BALLOT = """
SELECT writetime(ticket) FROM mutex_locks WHERE resource_type = ? AND resource_id = ?
"""
NAIVE_PAUSE = 0.025, 0.075
"""Seconds between two tries of the naive loop, at least and at most."""


class _Client:
    """Prepared statements on a session with the settings of our own sessions."""

    def __init__(
        self,
        session: Any,  # noqa: ANN401 - the driver has no types
        *,
        pause: tuple[float, float] | None,
        reads: bool,
    ) -> None:
        self.pause = pause
        self.reads = reads
        self._session = session
        self._loop = asyncio.get_running_loop()
        self.insert = self._prepare(INSERT)
        self.delete = self._prepare(DELETE)
        self.ballot = self._prepare(BALLOT, ConsistencyLevel.ONE)

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self, key)

    async def execute(self, statement: Any, *values: object) -> list[tuple[Any, ...]]:  # noqa: ANN401
        """Return the rows of one request."""
        answer: asyncio.Future[list[tuple[Any, ...]]] = self._loop.create_future()

        def set_result(rows: list[tuple[Any, ...]]) -> None:
            if not answer.done():  # cancelled with the tasks that still wait at the end
                answer.set_result(rows)

        def set_exception(exc: Exception) -> None:
            if not answer.done():
                answer.set_exception(exc)

        # The callbacks run in the driver's thread.
        wake = self._loop.call_soon_threadsafe
        self._session.execute_async(statement, values).add_callbacks(
            lambda rows: wake(set_result, rows), lambda exc: wake(set_exception, exc)
        )
        return await answer

    def _prepare(self, cql: str, level: int = ConsistencyLevel.QUORUM) -> Any:  # noqa: ANN401
        statement = self._session.prepare(cql)
        statement.consistency_level = level
        return statement


class _Lock:
    """The lock of one task."""

    def __init__(self, client: _Client, key: str) -> None:
        self._client = client
        self._key = row_of(key)
        self._ticket = secrets.token_hex(16)

    async def __aenter__(self) -> None:
        client = self._client
        while not await self._applied(client.insert):
            assert client.pause, "the floor is for one task to a key"
            await asyncio.sleep(random.uniform(*client.pause))
        if client.reads:
            # A replica that has not heard of the row yet answers with no row.
            while not await client.execute(client.ballot, *self._key):
                pass

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._applied(self._client.delete)

    async def _applied(self, statement: object) -> bool:
        rows = await self._client.execute(statement, *self._key, self._ticket)
        return bool(rows[0][0])


@contextmanager
def _session(url: str) -> Iterator[Any]:
    """Open a session of the keyspace in the URL, as our own sessions are opened."""
    parts = urlsplit(url)
    hosts, _, port = parts.netloc.rpartition(":")
    policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(), shuffle_replicas=False)
    profile = ExecutionProfile(
        policy,
        FallthroughRetryPolicy(),
        ConsistencyLevel.QUORUM,
        ConsistencyLevel.SERIAL,
        REQUEST_TIMEOUT,
        tuple_factory,
    )
    cluster = Cluster(
        hosts.split(","),
        port=int(port),
        protocol_version=PROTOCOL,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        yield cluster.connect(parts.path.strip("/"))
    finally:
        cluster.shutdown()


@asynccontextmanager
async def floor(
    url: str,
    lease: float,
    *,
    pause: tuple[float, float] | None = None,
    reads: bool = False,
) -> AsyncIterator[Client]:
    """Open the published statements without a lease.

    Args:
        url: Hosts, port and keyspace.
        lease: Ignored.
        pause: Seconds between two tries; None: a refused task fails.
        reads: Read the ballot of the insert, which a fence costs at least.
    """
    del lease
    with _session(url) as session:
        yield _Client(session, pause=pause, reads=reads)


floor_and_read = partial(floor, reads=True)
naive = partial(floor, pause=NAIVE_PAUSE)
eager = partial(floor, pause=(0.0, 0.0))
