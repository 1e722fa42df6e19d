"""The Redis store over TLS, by the conformance suite: half of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.redis import TlsHarness
from tests.servers.certificates import Certificates
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.in_turn("test_redis.py has both, with the same connections"),
    pytest.mark.share(1, 3, "test_redis.py has all cases"),
    pytest.mark.no_uvloop("the tests of connections have it"),
]


@pytest.fixture(scope="module", autouse=True)
def _server(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[None]:
    server = RedisServer(
        tmp_path_factory.mktemp("redis"),
        config={"tls-auth-clients": "yes"},
        certificates=certificates,
    )
    TlsHarness.server = server
    yield
    server.close()


class TestRedisTls(ConformanceSuite):
    """``rediss://`` with a certificate of the client's."""

    harness = TlsHarness()
