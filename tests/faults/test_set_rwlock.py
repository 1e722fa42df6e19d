"""Real processes on one pair of keys (S3): many, killed. Judged by their history."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from aiorwlock_remote.testing.judge import judge
from tests.faults.fleet import Fleet
from tests.faults.test_processes import NAMES, judged, turns_of
from tests.judge.fix_judge import GoJudge
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

KEYS = "readlock:shared:1", "writelock:shared:1"
LOOPS = ("asyncio", "trio", "asyncio", "trio")


def left_behind(server: RedisServer) -> int:
    return int(server.ask("EXISTS", *KEYS, f"{{{KEYS[0]}}}.queue"))


def test_eight_tasks_in_four_processes(
    fresh_redis: RedisServer, tmp_path: Path, go_judge: GoJudge
) -> None:
    """Every task gets all its turns; readers starve nobody who comes to an end."""
    with Fleet(fresh_redis.url, tmp_path) as fleet:
        for loop in LOOPS:
            fleet.start(tasks=8, turns=12, lease=30, loop=loop, pair=True)
        fleet.join()
        events = judged(fleet, go_judge, 30)
    assert turns_of(events) == dict.fromkeys(NAMES, 96)
    assert left_behind(fresh_redis) == 0


def test_killed_holders_and_waiters(
    fresh_redis: RedisServer, tmp_path: Path, go_judge: GoJudge
) -> None:
    """SIGKILL at random moments: somebody enters each time, and nobody clashes."""
    chance, plan = random.Random(1), {"tasks": 8, "lease": 0.5, "body": 0.02}
    with Fleet(fresh_redis.url, tmp_path) as fleet:
        for loop in LOOPS:
            fleet.start(**plan, loop=loop, pair=True)
        for _ in range(8):
            time.sleep(chance.uniform(0.1, 0.4))
            before = len(turns_of(fleet.history()))
            fleet.kill(chance.choice(fleet.names))
            fleet.start(**plan, loop=chance.choice(LOOPS), pair=True)
            assert before > 0
        time.sleep(1.5)
        for name in fleet.names:
            fleet.kill(name)
        events = judged(fleet, go_judge, 0.5)
    turns = turns_of(events)
    assert all(turns[name] > 0 for name in sorted(turns)[-4:]), turns


def test_the_judge_sees_who_does_not_ask(
    fresh_redis: RedisServer, tmp_path: Path
) -> None:
    """The control: one of the processes locks other keys than it should."""
    with Fleet(fresh_redis.url, tmp_path) as fleet:
        plan = {"tasks": 4, "turns": 15, "lease": 30, "pair": True}
        fleet.start(**plan)
        fleet.start(**plan, locks=2)
        fleet.join()
        violations = judge(fleet.history()).violations
    assert "exclusion" in {violation.kind for violation in violations}
