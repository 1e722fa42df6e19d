"""Real processes on one SQLite file: many, killed, paused. Judged by their history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote.testing.events import Event, Granted, Lost
from aiorwlock_remote.testing.judge import judge
from tests.faults import kills
from tests.faults.fleet import Fleet
from tests.judge.fix_judge import GoJudge

LEASE = 1.0


def judged(fleet: Fleet, go_judge: GoJudge, lease: float) -> list[Event]:
    """The history, once both judges have found nothing wrong with it."""
    events = fleet.history()
    assert judge(events).violations == ()
    verdict = go_judge(sorted(fleet.folder.glob("*.jsonl")), lease * 1000)
    assert verdict.ok, verdict
    return events


def test_fifty_tasks_in_four_processes(tmp_path: Path, go_judge: GoJudge) -> None:
    """Every one of 200 tasks gets all its turns; asyncio and trio side by side."""
    with Fleet(f"sqlite:///{tmp_path}/locks.db", tmp_path) as fleet:
        for loop in ("asyncio", "trio", "asyncio", "trio"):
            fleet.start(tasks=50, turns=2, lease=30, loop=loop)
        fleet.join()
        events = judged(fleet, go_judge, 30)
    turns = Counter(e.process for e in events if isinstance(e, Granted))
    assert turns == {"w0": 100, "w1": 100, "w2": 100, "w3": 100}


def test_killed_holders(tmp_path: Path, go_judge: GoJudge) -> None:
    """SIGKILL at random moments: the file stays usable, somebody enters each time.

    How soon is measured by the soak (``nox -s soak``).
    """
    _, gaps = kills.run(tmp_path, kills=20, seed=1)
    assert len(gaps) == 20
    verdict = go_judge(sorted(tmp_path.glob("*.jsonl")), kills.LEASE * 1000)
    assert verdict.ok, verdict


def test_paused_past_its_lease(tmp_path: Path, go_judge: GoJudge) -> None:
    """SIGSTOP for two leases: the paused process is told, its fence is refused."""
    plan = {"tasks": 2, "writes": 1.0, "lease": LEASE, "body": 0.05}
    with Fleet(f"sqlite:///{tmp_path}/locks.db", tmp_path) as fleet:
        first = fleet.start(**plan)
        fleet.start(**plan)
        for _ in range(4):
            with fleet.paused(first):
                anyio.run(anyio.sleep, 2 * LEASE)
            anyio.run(anyio.sleep, 0.2)
        for name in fleet.names:
            fleet.kill(name)
        events = judged(fleet, go_judge, LEASE)
    lost = [e for e in events if isinstance(e, Lost)]
    assert {e.process for e in lost} <= {first}


@pytest.mark.parametrize("turns", [100])
def test_nobody_starves_among_readers_and_writers(
    tmp_path: Path, go_judge: GoJudge, turns: int
) -> None:
    """Mostly readers: the writers get their turns all the same."""
    with Fleet(f"sqlite:///{tmp_path}/locks.db", tmp_path) as fleet:
        for _ in range(2):
            fleet.start(tasks=10, turns=turns // 10, writes=0.1, lease=30)
        fleet.join()
        events = judged(fleet, go_judge, 30)
    assert sum(isinstance(e, Granted) for e in events) == 2 * turns
