"""The Cassandra store on one node, by the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.backends.cassandra.options import options_of
from aiorwlock_remote.backends.cassandra.statements import statement
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores import CassandraHarness
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.servers.plain_cassandra import PlainCassandra

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver has a thread of its own"),
]

WARM = 100
"""Turns until Java has compiled the most of it: the suite has leases of 0.2 s."""


@pytest.fixture(scope="module", autouse=True)
def _table(cassandra_node: SharedNode, cassandra_visit: Visit) -> Iterator[None]:
    with fresh_keyspace(cassandra_node, cassandra_visit) as keyspace:
        options = options_of(parse(keyspace.url))
        keyspace.visit.rows(statement("schema_pair", options))
        CassandraHarness.keyspace = keyspace
        published = PlainCassandra(keyspace, "warm")
        for _ in range(WARM):
            assert published.take(("up", 1), "t")
            assert published.free(("up", 1), "t")
        yield


class TestCassandra(ConformanceSuite):
    """``cassandra://``."""

    harness = CassandraHarness()
