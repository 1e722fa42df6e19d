"""Cassandra nodes that hold every row, each of them, on 127.0.0.1, .2 and .3."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    Session,
)
from cassandra.policies import FallthroughRetryPolicy, WhiteListRoundRobinPolicy
from cassandra.protocol import ErrorMessage
from cassandra.query import SimpleStatement

from tests.servers.cassandra import CENTRE, CassandraNode
from tests.servers.process import free_port, until

IPS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SETTLES_IN = 120.0
GREETED_IN = 30.0
PROTOCOL = 5  # as Cassandra 4 and 5 speak it; nothing to find out


class Visit:
    """A session with one node alone, at QUORUM and SERIAL, that repeats nothing."""

    def __init__(
        self,
        ip: str,
        port: int,
        *,
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        profile = ExecutionProfile(
            WhiteListRoundRobinPolicy([ip]),
            FallthroughRetryPolicy(),
            ConsistencyLevel.QUORUM,
            ConsistencyLevel.SERIAL,
            timeout,
        )
        self._cluster = Cluster(
            [ip],
            port=port,
            protocol_version=PROTOCOL,
            connect_timeout=GREETED_IN,
            control_connection_timeout=GREETED_IN,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            ssl_context=tls,
        )
        self.session: Session = self._cluster.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def rows(self, cql: str, *values: object) -> list[Any]:
        """All rows of one statement; driver errors are raised."""
        return list(self.session.execute(cql, values or None))

    def close(self) -> None:
        self._cluster.shutdown()


class CassandraRing:
    """Up and settled when the constructor returns: schema changes reach every node.

    ``clocks``: seconds by which each node's wall clock is ahead. ``centres``: the data
    centre of each node, three nodes unless there are fewer of these.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, str] | None = None,
        clocks: Sequence[int] = (0, 0, 0),
        centres: Sequence[str] = (CENTRE, CENTRE, CENTRE),
    ) -> None:
        ports = free_port(*IPS), free_port(*IPS)
        self.port: int = ports[0]
        self.nodes: list[CassandraNode] = []
        try:
            for number, (ip, centre) in enumerate(zip(IPS, centres, strict=False)):
                token = -(2**63) + (number + 1) * 2**62
                node = CassandraNode(
                    folder / f"n{number + 1}",
                    ip=ip,
                    seed=IPS[0],
                    ports=ports,
                    config={"initial_token": str(token)} | dict(config or {}),
                    clock=clocks[number],
                    centre=centre,
                )
                self.nodes.append(node)
            for node in self.nodes:
                node.wait()
            self.settle()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Without a keyspace."""
        hosts = ",".join(node.ip for node in self.nodes)
        return f"cassandra://{hosts}:{self.port}"

    def settle(self) -> None:
        """Until every node sees all others up and knows the same schema."""
        visits = [Visit(node.ip, self.port) for node in self.nodes]
        try:
            for visit in visits:
                agrees = partial(self._agrees, visit)
                until(agrees, "gossip settles", SETTLES_IN)
            visits[0].rows(
                "CREATE KEYSPACE IF NOT EXISTS probe WITH replication = "
                f"{{'class': 'SimpleStrategy', 'replication_factor': {len(visits)}}}"
            )
            visits[0].rows("CREATE TABLE IF NOT EXISTS probe.t (k int PRIMARY KEY)")
            for visit in visits:  # through each coordinator: each sees all up
                until(partial(_writes, visit), "all are up", SETTLES_IN)
        finally:
            for visit in visits:
                visit.close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _agrees(self, visit: Visit) -> bool:
        peers = visit.rows("SELECT schema_version FROM system.peers_v2")
        (mine,) = visit.rows("SELECT schema_version FROM system.local")
        others = {peer.schema_version for peer in peers} | {mine.schema_version}
        return len(peers) == len(self.nodes) - 1 and len(others) == 1


def _writes(visit: Visit) -> bool:
    write = SimpleStatement(
        "INSERT INTO probe.t (k) VALUES (1)", consistency_level=ConsistencyLevel.ALL
    )
    try:
        visit.session.execute(write)
    except (DriverException, ErrorMessage, NoHostAvailable):
        return False
    return True
