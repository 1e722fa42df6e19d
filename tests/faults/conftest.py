"""The judge for histories of real processes; stores and their outages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.store_outages import site
from tests.judge.fix_judge import go_judge, go_judge_binary
from tests.servers.redis import RedisServer

__all__ = ["go_judge", "go_judge_binary", "site"]


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db"
    server: RedisServer = request.getfixturevalue("fresh_redis")
    return server.url
