"""The stores on which tests of what is above all stores are run."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers.redis import RedisServer

STORES = ("sqlite", "redis", "postgresql")
"""Parameters of the fixtures that call ``store_url``."""


def store_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A store of the parameter's kind that no other test uses: a file, a prefix, a
    database.
    """
    if request.param == "sqlite":
        return f"sqlite:///{folder}/locks.db"
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return f"{server.url}?prefix={uuid4().hex}-"
    tables: str = request.getfixturevalue("tables")
    return tables
