"""Three Cassandra nodes that hold every row three times, on 127.0.0.1, .2 and .3."""

from __future__ import annotations

from collections.abc import Mapping
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
from cassandra.query import SimpleStatement

from tests.servers.cassandra import CassandraNode, free_port
from tests.servers.process import until

IPS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SETTLES_IN = 120.0


class Visit:
    """A session with one node alone, at QUORUM and SERIAL, that repeats nothing."""

    def __init__(self, ip: str, port: int, *, timeout: float = 10.0) -> None:
        profile = ExecutionProfile(
            WhiteListRoundRobinPolicy([ip]),
            FallthroughRetryPolicy(),
            ConsistencyLevel.QUORUM,
            ConsistencyLevel.SERIAL,
            timeout,
        )
        self._cluster = Cluster(
            [ip], port=port, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
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
    """Up and settled when the constructor returns: schema changes reach every node."""

    def __init__(
        self, folder: Path, *, config: Mapping[str, str] | None = None
    ) -> None:
        ports = free_port(*IPS), free_port(*IPS)
        self.port: int = ports[0]
        self.nodes: list[CassandraNode] = []
        try:
            for number, ip in enumerate(IPS):
                token = -(2**63) + (number + 1) * 2**62
                node = CassandraNode(
                    folder / f"n{number + 1}",
                    ip=ip,
                    seed=IPS[0],
                    ports=ports,
                    config={"initial_token": str(token)} | dict(config or {}),
                    wait=False,
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
        return f"cassandra://{','.join(IPS)}:{self.port}"

    def settle(self) -> None:
        """Until every node sees all others up and knows the same schema."""
        visits = [Visit(node.ip, self.port) for node in self.nodes]
        try:
            for visit in visits:
                until(lambda visit=visit: _agrees(visit), "gossip settles", SETTLES_IN)  # type: ignore[misc]
            visits[0].rows(
                "CREATE KEYSPACE IF NOT EXISTS probe WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 3}"
            )
            visits[0].rows("CREATE TABLE IF NOT EXISTS probe.t (k int PRIMARY KEY)")
            for visit in visits:  # through each coordinator: each sees all up
                until(lambda visit=visit: _writes(visit), "all are up", SETTLES_IN)  # type: ignore[misc]
        finally:
            for visit in visits:
                visit.close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _agrees(visit: Visit) -> bool:
    peers = visit.rows("SELECT schema_version FROM system.peers_v2")
    (mine,) = visit.rows("SELECT schema_version FROM system.local")
    others = [peer.schema_version for peer in peers]
    return len(others) == len(IPS) - 1 and set(others) == {mine.schema_version}


def _writes(visit: Visit) -> bool:
    write = SimpleStatement(
        "INSERT INTO probe.t (k) VALUES (1)", consistency_level=ConsistencyLevel.ALL
    )
    try:
        visit.session.execute(write)
    except (DriverException, NoHostAvailable):
        return False
    return True
