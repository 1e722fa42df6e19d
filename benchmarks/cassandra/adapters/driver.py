"""A session of cassandra-driver, awaited on asyncio in the simplest decent way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
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

TIMEOUT = 2.0
PROTOCOL = 5


class Wire:
    """Prepared statements, with the settings that our own session has."""

    def __init__(self, session: Any, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ANN401 - the driver has no types
        self._session = session
        self._loop = loop

    def prepare(self, cql: str, level: int = ConsistencyLevel.QUORUM) -> Any:  # noqa: ANN401
        """A statement. Blocks."""
        statement = self._session.prepare(cql)
        statement.consistency_level = level
        return statement

    async def ask(self, statement: Any, *values: object) -> list[tuple[Any, ...]]:  # noqa: ANN401
        """Its rows: one request, one wake of the loop, no thread."""
        answer: asyncio.Future[list[tuple[Any, ...]]] = self._loop.create_future()
        wake = self._loop.call_soon_threadsafe
        self._session.execute_async(statement, values).add_callbacks(
            lambda rows: wake(answer.set_result, rows),
            lambda exc: wake(answer.set_exception, exc),
        )
        return await answer


@contextmanager
def session(url: str) -> Iterator[Any]:
    """Of the keyspace in the URL, as our own are opened."""
    parts = urlsplit(url)
    hosts, _, port = parts.netloc.rpartition(":")
    near = TokenAwarePolicy(DCAwareRoundRobinPolicy(), shuffle_replicas=False)
    profile = ExecutionProfile(
        near,
        FallthroughRetryPolicy(),
        ConsistencyLevel.QUORUM,
        ConsistencyLevel.SERIAL,
        TIMEOUT,
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
