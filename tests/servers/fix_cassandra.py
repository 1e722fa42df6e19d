"""Fixtures: one Cassandra node for all workers, others for tests that hurt theirs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.cassandra import LOG, STARTS_IN, CassandraNode, node_command
from tests.servers.cassandra_ring import Visit
from tests.servers.process import IP, end_of, free_port, takes_connections, until
from tests.servers.shared import Facts, shared

StartCassandra = Callable[..., CassandraNode]


@dataclass(frozen=True, slots=True)
class SharedNode:
    """The node of this pytest run: leave its settings alone, and never stop it."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Without a keyspace."""
        return f"cassandra://{IP}:{self.port}"


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace for one test, with nothing in it yet."""

    node: SharedNode
    name: str
    visit: Visit

    @property
    def url(self) -> str:
        return f"{self.node.url}/{self.name}"


def _prepare(folder: Path) -> tuple[list[str], Facts]:
    port = free_port()
    command = node_command(folder, port=port, storage_port=free_port(), restarts=False)
    return command, {"port": port}


@contextmanager
def fresh_keyspace(node: SharedNode, visit: Visit) -> Iterator[Keyspace]:
    """An empty one, dropped afterwards."""
    name = f"t{secrets.token_hex(6)}"
    visit.rows(
        f"CREATE KEYSPACE {name} WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    yield Keyspace(node, name, visit)
    visit.rows(f"DROP KEYSPACE {name}")


@pytest.fixture(scope="session")
def cassandra_node(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedNode]:
    """Shared by all workers: use a keyspace of your own (see ``keyspace``)."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "shared-cassandra"
    with shared(folder, _prepare) as facts:
        node = SharedNode(facts["port"], facts["pid"])
        try:
            until(
                lambda: takes_connections(IP, node.port),
                "the shared Cassandra takes connections",
                STARTS_IN,
            )
        except TimeoutError:
            pytest.fail(f"Cassandra does not start: {end_of(folder / LOG)}")
        yield node


@pytest.fixture(scope="session")
def cassandra_visit(cassandra_node: SharedNode) -> Iterator[Visit]:
    """The published program: a driver's session with the shared node."""
    with Visit(IP, cassandra_node.port) as visit:
        yield visit


@pytest.fixture
def keyspace(cassandra_node: SharedNode, cassandra_visit: Visit) -> Iterator[Keyspace]:
    """An empty one, dropped afterwards."""
    with fresh_keyspace(cassandra_node, cassandra_visit) as fresh:
        yield fresh


@pytest.fixture
def start_cassandra(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartCassandra]:
    """Starts a node to be broken: ``start_cassandra(config=…)``."""
    nodes: list[CassandraNode] = []

    def start(*, config: dict[str, str] | None = None) -> CassandraNode:
        folder = tmp_path_factory.mktemp("cassandra")
        nodes.append(CassandraNode(folder, config=config))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()
