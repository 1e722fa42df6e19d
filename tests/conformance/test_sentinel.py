"""The Redis store found through Sentinel, by the conformance suite: half of it."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import SentinelHarness
from tests.servers.sentinel import SentinelGroup

pytestmark = [
    pytest.mark.in_turn("test_redis.py has both, with the same connections"),
    pytest.mark.share(2, 3, "test_redis.py has all cases"),
    pytest.mark.no_uvloop("Sentinel's own tests have it"),
]


@pytest.fixture(scope="module", autouse=True)
def _group(sentinel_group: SentinelGroup) -> None:
    SentinelHarness.group = sentinel_group


class TestSentinel(ConformanceSuite):
    """``redis+sentinel://``."""

    harness = SentinelHarness()
