"""The Redis store with the rights of the documentation, by the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import RightsHarness
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.only_on("asyncio", "rights are nothing new to a loop"),
    pytest.mark.share(0, 3, "test_redis.py has all cases"),
]


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    RightsHarness.server = server
    yield
    server.close()


class TestRedisRights(ConformanceSuite):
    """``redis://user:password@``, and no right too many."""

    harness = RightsHarness()
