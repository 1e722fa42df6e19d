"""Real processes on one pair of keys (S3): many, killed. Judged by their history."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from aiorwlock_remote.testing.checker import check_history
from tests.faults.test_processes import NAMES, judged, turns_of
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.process import until
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

LOOPS = ("asyncio", "trio", "asyncio", "trio")


def test_eight_tasks_in_four_processes(
    fresh_redis: RedisServer, tmp_path: Path, go_judge: GoJudge
) -> None:
    """All at once for a while; everybody gets in, again and again."""
    with WorkerPool(fresh_redis.url, tmp_path) as pool:
        for loop in LOOPS:
            pool.start(tasks=8, lease=30, loop=loop, pair=True)
        time.sleep(2)
        for name in pool.names:
            pool.kill(name)
        events = judged(pool, go_judge, 30)
    turns = turns_of(events)
    assert min(turns[name] for name in NAMES) > 10, turns


def test_killed_holders_and_waiters(
    fresh_redis: RedisServer, tmp_path: Path, go_judge: GoJudge
) -> None:
    """SIGKILL at random moments: somebody enters each time, and nobody clashes."""
    chance, plan = (
        random.Random(1),
        {"tasks": 8, "lease": 0.5, "body": 0.02, "pair": True},
    )
    with WorkerPool(fresh_redis.url, tmp_path) as pool:
        for loop in LOOPS:
            pool.start(**plan, loop=loop)
        for _ in range(8):
            time.sleep(chance.uniform(0.1, 0.4))
            before = len(turns_of(pool.history()))
            pool.kill(chance.choice(pool.names))
            pool.start(**plan, loop=chance.choice(LOOPS))
            assert before > 0
        time.sleep(1.5)
        for name in pool.names:
            pool.kill(name)
        events = judged(pool, go_judge, 0.5)
    turns = turns_of(events)
    assert all(turns[name] > 0 for name in sorted(turns)[-4:]), turns


def test_the_judge_sees_who_does_not_ask(
    fresh_redis: RedisServer, tmp_path: Path
) -> None:
    """The control: one of the processes locks other keys than it should."""
    with WorkerPool(fresh_redis.url, tmp_path) as pool:
        plan = {"tasks": 4, "lease": 30, "pair": True}
        pool.start(**plan)
        pool.start(**plan, locks=2)

        def clash() -> bool:
            found = check_history(pool.history()).violations
            return "exclusion" in {violation.kind for violation in found}

        until(clash, "they clash")
