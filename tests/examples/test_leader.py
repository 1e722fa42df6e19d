"""Who leads, or stands by, goes on after an outage that is longer than the lease."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.examples.test_tasks import output, start
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer


@pytest.mark.slow
def test_an_outage_that_is_longer_than_the_lease(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """``anyio_task.py`` begins again, with a new fence."""
    with Proxy(redis_server.port) as proxy:
        url = f"{proxy.url}?prefix=example"
        process = start(tmp_path, "anyio_task.py", LOCKS_URL=url, ROUNDS="100")
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            begun = next(line for line in lines if "round 1," in line)
            proxy.refuse()
            proxy.cut()
            deposed = next(line for line in lines if "stands by" in line)
            time.sleep(1)
            assert process.poll() is None, deposed
            proxy.accept()
            again = next(line for line in lines if "round 1," in line)
            text = output(process)
        finally:
            process.kill()
            process.communicate()
    fences = [int(number) for number in re.findall(r"fence (\d+)", begun + again)]
    assert fences[0] < fences[1]
    assert f"round 100, fence {fences[1]}" in text


@pytest.mark.slow
def test_a_leader_that_is_killed(redis_server: RedisServer, tmp_path: Path) -> None:
    """Another goes on, and Ctrl-C ends it."""
    url = f"{redis_server.url}?prefix=killed"
    first = start(tmp_path, "anyio_task.py", LOCKS_URL=url, ROUNDS="1000")
    try:
        assert first.stdout is not None
        next(line for line in iter(first.stdout.readline, "") if "round 3," in line)
        second = start(tmp_path, "anyio_task.py", "trio", LOCKS_URL=url, ROUNDS="2")
        assert second.stdout is not None
        assert "waits" in second.stdout.readline()
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    assert "round 2," in output(second)
