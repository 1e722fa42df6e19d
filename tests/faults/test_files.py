"""Processes that share a directory of locks, and are killed while they are at it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.testing.checker import check_history
from aiorwlock_remote.testing.history import now
from tests.faults.shared_store import LOOPS, FourWorkers, acquit
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge

pytestmark = pytest.mark.slow

LEASE = 1.0
KILLS = 4


@pytest.mark.parametrize("option", ["", "?shared=yes"])
def test_killed_holders(tmp_path: Path, go_judge: GoJudge, option: str) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    place = tmp_path / "locks"
    place.mkdir()
    with WorkerPool(f"{place.as_uri()}{option}", tmp_path) as pool:
        workers = FourWorkers(pool, lease=LEASE)
        workers.start()
        for number in range(KILLS):
            time.sleep(random.uniform(0.05, 0.3))
            pool.kill(random.choice(pool.names))
            killed = now()
            pool.start(loop=random.choice(LOOPS), **workers.plan)
            workers.goes_on(f"killed {number}", killed)
        workers.takes_turns(50)
        events = workers.end()
    acquit(events, tmp_path, go_judge)


def test_two_directories_know_nothing_of_each_other(tmp_path: Path) -> None:
    """The control of the judge: what both protect is protected by neither."""
    places = [tmp_path / name for name in ("one", "other")]
    for place in places:
        place.mkdir()
    with WorkerPool(places[0].as_uri(), tmp_path) as pool:
        workers = FourWorkers(pool, body=0.01)
        for place in places:
            pool.start(place.as_uri(), **workers.plan, fenced=False)
        workers.takes_turns(100)
        violations = check_history(workers.end()).violations
    assert "exclusion" in {violation.kind for violation in violations}


@pytest.mark.anyio
@pytest.mark.no_uvloop("its threads are those of asyncio")
async def test_two_directories_at_the_same_time(tmp_path: Path) -> None:
    """In one process, under one name."""
    one, other = ((tmp_path / name).as_uri() + "?create=yes" for name in "ab")
    with anyio.fail_after(30):
        async with connect(one) as first, connect(other) as second:
            async with first.mutex("order", 1), second.mutex("order", 1):
                assert [d.resource_id async for d in first.list()] == ["1"]
            async with connect(one) as third, first.mutex("order", 1):
                assert await third.mutex("order", 1).try_acquire() is None
