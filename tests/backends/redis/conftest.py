"""What several tests of the scripts need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.redis.one_resource import Desk
from tests.servers.redis import RedisServer


@pytest.fixture
def desk(fresh_redis: RedisServer) -> Iterator[Desk]:
    """One resource at an empty server."""
    desk = Desk(fresh_redis)
    yield desk
    desk.close()
