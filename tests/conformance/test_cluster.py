"""The Redis store on a cluster of six, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import ClusterHarness
from tests.servers.cluster import Cluster

pytestmark = [
    pytest.mark.in_turn("test_redis.py has both, with the same connections"),
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]


@pytest.fixture(scope="module", autouse=True)
def _cluster(redis_cluster: Cluster) -> None:
    ClusterHarness.cluster = redis_cluster


class TestCluster(ConformanceSuite):
    """``redis+cluster://``."""

    harness = ClusterHarness()
