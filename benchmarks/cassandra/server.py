"""A private Cassandra, by the fixtures of the tests: one node, or a ring of three."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aiorwlock_remote.backends.cassandra.options import Options, statement
from benchmarks.cassandra.adapters import WOKEN
from benchmarks.redis.server import server as redis_server
from tests.servers.cassandra import CassandraNode
from tests.servers.cassandra_ring import CassandraRing, Visit

KEYSPACES = {"pair": "bench", "type": "bench_type"}
"""The keyspace of each layout, which is named after the partition key of its table."""
COUNTS = (
    "SELECT keyspace_name, count FROM system_views.local_read_latency",
    "SELECT keyspace_name, count FROM system_views.coordinator_read_latency",
)


@dataclass(frozen=True)
class Requests:
    """Numbers of transactions that change something, and of reads of any kind."""

    changes: int
    reads: int

    def __sub__(self, before: Requests) -> Requests:
        return Requests(self.changes - before.changes, self.reads - before.reads)


class Server:
    """A running node or ring, with the tables of the locks."""

    def __init__(self, url: str, visit: Visit, nodes: int, wake: str) -> None:
        self.nodes = nodes
        self._wake = wake
        self._url = url
        self._visit = visit
        for layout, keyspace in KEYSPACES.items():
            visit.rows(
                f"CREATE KEYSPACE {keyspace} WITH replication = "
                f"{{'class': 'SimpleStrategy', 'replication_factor': {nodes}}}"
            )
            visit.rows(statement(f"schema_{layout}", Options(keyspace)))

    def url(self, layout: str = "pair") -> str:
        """Return the URL of the table with that layout."""
        return f"{self._url}/{KEYSPACES[layout]}"

    def url_for(self, peer: str, seed: int) -> str:
        """Return the URL of the locks, with that of the hints for who is woken so."""
        del seed
        return f"{self.url()}?wake={self._wake}" if peer == WOKEN else self.url()

    def empty(self) -> None:
        """Remove all locks of both layouts."""
        for keyspace in KEYSPACES.values():
            self._visit.rows(f"TRUNCATE {keyspace}.mutex_locks")

    def version(self) -> str:
        """Return the version of the first node."""
        rows = self._visit.rows("SELECT release_version FROM system.local")
        return str(rows[0].release_version)

    def process_ids(self) -> list[int]:
        """Return nothing: this server's CPU time is not measured."""
        return []

    def connections(self) -> int:
        """Return how many connections clients have, without the two of our own."""
        return len(self._visit.rows("SELECT port FROM system_views.clients")) - 2

    def requests(self) -> Requests | None:
        """Return how many arrived so far for the tables; None for a ring.

        A node counts what it reads of a table, and separately what clients asked it to
        read. A transaction that writes reads once, to compare: so the difference is the
        number of transactions, refused or not.
        """
        # In a ring every replica reads for every transaction: the difference is wrong.
        if self.nodes > 1:
            return None
        local, asked = (self._count(cql) for cql in COUNTS)
        return Requests(local - asked, asked)

    def _count(self, cql: str) -> int:
        ours = KEYSPACES.values()
        rows = self._visit.rows(cql)
        return sum(row.count for row in rows if row.keyspace_name in ours)


@contextmanager
def server(folder: Path, options: Namespace) -> Iterator[Server]:
    """Start a node or, with ``--ring``, three; end them after the block."""
    try:
        running = CassandraRing(folder) if options.ring else CassandraNode(folder)
    except pytest.fail.Exception as exc:
        sys.exit(str(exc))  # says what is to be installed
    nodes = 3 if options.ring else 1
    try:
        with Visit("127.0.0.1", running.port) as visit, redis_server() as redis:
            yield Server(running.url, visit, nodes, redis.url)
    finally:
        running.close()
