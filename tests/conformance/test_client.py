"""What the client does by itself: with a store in memory, and with one that is far."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.client_cases import CLIENT_CASES
from tests.conformance.stores.memory import MemoryHarness
from tests.conformance.stores.redis import RedisHarness
from tests.servers.redis import RedisServer


@pytest.fixture(scope="module")
def redis(redis_server: RedisServer) -> None:
    RedisHarness.server = redis_server


@pytest.mark.no_uvloop("it has no connections")
class TestClient(ConformanceSuite):
    """``memory://``, whose replies come at once."""

    cases = CLIENT_CASES
    harness = MemoryHarness()


@pytest.mark.no_uvloop("its connections are those of asyncio, and test_redis.py has it")
@pytest.mark.usefixtures("redis")
class TestClientOfServer(ConformanceSuite):
    """``redis://``, whose replies come later."""

    cases = CLIENT_CASES
    harness = RedisHarness()
