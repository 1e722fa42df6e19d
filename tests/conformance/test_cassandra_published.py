"""The published table, through a user's session, by the conformance suite.

Its partition is the type of a resource, where our own table has one for each resource.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.cassandra import PublishedCassandraHarness
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.servers.plain_cassandra import make_published

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("asyncio", "the table is nothing new to a loop"),
    pytest.mark.share(1, 8, "test_cassandra.py has all cases"),
]


@pytest.fixture(scope="module", autouse=True)
def _table(cassandra_node: SharedNode, cassandra_visit: Visit) -> Iterator[None]:
    with fresh_keyspace(cassandra_node, cassandra_visit) as keyspace:
        make_published(keyspace)
        PublishedCassandraHarness.keyspace = keyspace
        yield


class TestPublishedCassandra(ConformanceSuite):
    """``CassandraBackend``, where somebody else made the table."""

    harness = PublishedCassandraHarness()
