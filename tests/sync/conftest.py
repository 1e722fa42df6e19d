"""Fixtures: the stores on which the synchronous API is tested."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers.redis import RedisServer

STORES = ("sqlite", "redis", "postgresql")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own: a file, a prefix, a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db"
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return f"{server.url}?prefix={uuid4().hex}-"
    tables: str = request.getfixturevalue("tables")
    return tables
