"""What several tests of the scripts need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.redis.one_resource import ResourceClient
from tests.servers.redis import RedisServer


@pytest.fixture
def client(fresh_redis: RedisServer) -> Iterator[ResourceClient]:
    """One resource at an empty server."""
    client = ResourceClient(fresh_redis)
    yield client
    client.close()
