"""The Redis store found through Sentinel, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import SentinelHarness
from tests.servers.sentinel import SentinelGroup

pytestmark = pytest.mark.only_on("asyncio", "Sentinel's own tests have the others")


@pytest.fixture(scope="module", autouse=True)
def _group(sentinel_group: SentinelGroup) -> None:
    SentinelHarness.group = sentinel_group


class TestSentinel(ConformanceSuite):
    """``redis+sentinel://``."""

    harness = SentinelHarness()
