"""The Redis store through a user's client, by the conformance suite; no trio.

Its two kinds share the cases.
"""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import ClientHarness, LoopBoundHarness, RedisHarness
from tests.loops import LOOPS
from tests.servers.redis import RedisServer


@pytest.fixture(scope="module", autouse=True)
def _server(redis_server: RedisServer) -> None:
    RedisHarness.server = redis_server


@pytest.fixture(
    scope="module", params=[loop for loop in LOOPS if str(loop.id) != "trio"]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The loops that redis-py works on."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.mark.no_uvloop("TestLoopBoundClient has it")
@pytest.mark.share(0, 2, "TestLoopBoundClient has the others")
class TestRedisClient(ConformanceSuite):
    """``RedisBackend``, whose keeper has a connection of its own."""

    harness = ClientHarness()


@pytest.mark.only_on("uvloop", "TestRedisClient has the other")
@pytest.mark.share(1, 2, "TestRedisClient has the others")
class TestLoopBoundClient(ConformanceSuite):
    """``RedisBackend``, whose keeper needs the user's loop."""

    harness = LoopBoundHarness()
