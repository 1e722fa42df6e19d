"""The Redis store, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import RedisHarness
from tests.servers.redis import RedisServer


@pytest.fixture(scope="module", autouse=True)
def _server(redis_server: RedisServer) -> None:
    RedisHarness.server = redis_server


class TestRedis(ConformanceSuite):
    """``redis://``."""

    harness = RedisHarness()
