"""The Redis store, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import RedisHarness
from tests.loops import ALL_IN_TURN, ASYNCIO_IN_TURN
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.in_turn("uvloop runs what asyncio runs", ASYNCIO_IN_TURN),
    pytest.mark.sleepers_in_turn("its other suites have the other loops", ALL_IN_TURN),
]


@pytest.fixture(scope="module", autouse=True)
def _server(redis_server: RedisServer) -> None:
    RedisHarness.server = redis_server


class TestRedis(ConformanceSuite):
    """``redis://``."""

    harness = RedisHarness()
