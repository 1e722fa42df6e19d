"""The Cassandra store on one node and our own table, by the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.cassandra import CassandraHarness
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.servers.plain_cassandra import make_ours

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn("its answers come to both in the same way"),
    pytest.mark.no_uvloop("the driver has a thread of its own"),
]


@pytest.fixture(scope="module", autouse=True)
def _table(cassandra_node: SharedNode, cassandra_visit: Visit) -> Iterator[None]:
    with fresh_keyspace(cassandra_node, cassandra_visit) as keyspace:
        make_ours(keyspace)
        CassandraHarness.keyspace = keyspace
        yield


class TestCassandra(ConformanceSuite):
    """``cassandra://``."""

    harness = CassandraHarness()
