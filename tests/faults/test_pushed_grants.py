"""Grants by message while messages and processes fail: nobody is inside beside another.

The hammer itself, ``tests/faults/pushed_grants.py``, is run by hand for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.pushed_grants import hammer
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

GRANTS = 400


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    redis_server.ask("FLUSHALL")
    return redis_server.url


def test_on_redis(redis_url: str, tmp_path: Path) -> None:
    verdict, done = hammer(redis_url, tmp_path, GRANTS)
    assert verdict.violations == ()
    assert done["entered by a message"] > 0
    assert done["messages forged"] > 0


def test_on_postgresql(start_postgresql: StartPostgresql, tmp_path: Path) -> None:
    verdict, done = hammer(start_postgresql().url, tmp_path, GRANTS)
    assert verdict.violations == ()
    assert done["entered by a message"] > 0


def test_the_judge_sees_who_believes_everything(redis_url: str, tmp_path: Path) -> None:
    """The control: two hold at a time, or a fence falls."""
    verdict, _ = hammer(redis_url, tmp_path, GRANTS, gullible=True)
    assert {violation.kind for violation in verdict.violations} & {"exclusion", "fence"}
