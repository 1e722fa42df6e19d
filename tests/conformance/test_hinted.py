"""Stores that poll, with hints over Redis, by the conformance suite: there, and cut."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.hinted import (
    HintedCassandraHarness,
    HintedMariadbHarness,
    HintedOracleHarness,
    cut_again_and_again,
)
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.servers.fix_mariadb import make_tables
from tests.servers.mariadb import MariadbServer
from tests.servers.plain_cassandra import make_ours
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn("the suites without a channel say why"),
    pytest.mark.no_uvloop("the suites without a channel say why"),
]


class CutMariadbHarness(HintedMariadbHarness):
    """The channel comes and goes."""


class CutOracleHarness(HintedOracleHarness):
    """The channel comes and goes."""


class CutCassandraHarness(HintedCassandraHarness):
    """The channel comes and goes."""


@pytest.fixture(scope="module", autouse=True)
def _channels(redis_server: RedisServer) -> Iterator[None]:
    there = f"redis://127.0.0.1:{redis_server.port}/0"
    for hinted in (HintedMariadbHarness, HintedOracleHarness, HintedCassandraHarness):
        hinted.wake = there
    with cut_again_and_again(redis_server.port) as cut:
        for hinted in (CutMariadbHarness, CutOracleHarness, CutCassandraHarness):
            hinted.wake = cut
        yield


@pytest.fixture(scope="module")
def mariadb_for_hints(mariadb_server: MariadbServer) -> Iterator[None]:
    with mariadb_server.database(f"t_{secrets.token_hex(6)}") as url:
        make_tables(url)
        HintedMariadbHarness.url = url
        yield


@pytest.fixture(scope="module")
def cassandra_for_hints(
    cassandra_node: SharedNode, cassandra_visit: Visit
) -> Iterator[None]:
    with fresh_keyspace(cassandra_node, cassandra_visit) as keyspace:
        make_ours(keyspace)
        HintedCassandraHarness.keyspace = keyspace
        yield


@pytest.mark.usefixtures("mariadb_for_hints")
@pytest.mark.share(0, 8, "test_mariadb.py has all cases")
class TestHintedMariadb(ConformanceSuite):
    """``mariadb://…?wake=redis://…``."""

    harness = HintedMariadbHarness()


@pytest.mark.usefixtures("mariadb_for_hints")
@pytest.mark.share(1, 8, "test_mariadb.py has all cases")
class TestCutMariadb(ConformanceSuite):
    """The same, and the channel is cut again and again."""

    harness = CutMariadbHarness()


@pytest.mark.usefixtures("oracle_tables")
@pytest.mark.share(3, 8, "test_oracle.py has all cases")
class TestHintedOracle(ConformanceSuite):
    """``oracle://…?wake=redis://…``, at the double."""

    harness = HintedOracleHarness()


@pytest.mark.usefixtures("oracle_tables")
@pytest.mark.share(4, 8, "test_oracle.py has all cases")
class TestCutOracle(ConformanceSuite):
    """The same, and the channel is cut again and again."""

    harness = CutOracleHarness()


@pytest.mark.usefixtures("cassandra_for_hints")
@pytest.mark.share(0, 8, "test_cassandra.py has all cases")
class TestHintedCassandra(ConformanceSuite):
    """``cassandra://…&wake=redis://…``."""

    harness = HintedCassandraHarness()


@pytest.mark.usefixtures("cassandra_for_hints")
@pytest.mark.share(5, 8, "test_cassandra.py has all cases")
class TestCutCassandra(ConformanceSuite):
    """The same, and the channel is cut again and again."""

    harness = CutCassandraHarness()
