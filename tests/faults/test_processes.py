"""Real processes on one store: many, killed, paused. Judged by their history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote.testing.checker import check_history
from aiorwlock_remote.testing.history import Event, Granted
from tests.faults import kills
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.second_look import second_look

LEASE = 1.0
NAMES = ("w0", "w1", "w2", "w3")


def store_of(url: str) -> str:
    """The kind of store."""
    return url.partition(":")[0]


def run_workers(pool: WorkerPool, tasks: int) -> None:
    """Four processes, two turns for each task."""
    for loop in ("asyncio", "trio", "asyncio", "trio"):
        pool.start(tasks=tasks, turns=2, lease=30, loop=loop)
    pool.join()


def turns_of(events: list[Event]) -> Counter[str]:
    """How often each process was let in."""
    return Counter(e.process for e in events if isinstance(e, Granted))


def judged(pool: WorkerPool, go_judge: GoJudge, lease: float) -> list[Event]:
    """The history, once both judges have found nothing wrong with it."""
    events = pool.history()
    assert check_history(events).violations == ()
    verdict = go_judge(sorted(pool.folder.glob("*.jsonl")), lease * 1000)
    assert verdict.ok, verdict
    return events


@second_look("its processes end after so many seconds")
def test_fifty_tasks_in_four_processes(
    url: str, tmp_path: Path, go_judge: GoJudge
) -> None:
    """Every one of 200 tasks gets all its turns; asyncio and trio side by side."""
    with WorkerPool(url, tmp_path) as pool:
        run_workers(pool, tasks=50)
        events = judged(pool, go_judge, 30)
    assert turns_of(events) == dict.fromkeys(NAMES, 100)


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_two_hundred_tasks_in_each_of_four_processes(url: str, tmp_path: Path) -> None:
    """Without the Go judge, who cannot decide on so much at a time."""
    with WorkerPool(url, tmp_path) as pool:
        run_workers(pool, tasks=200)
        events = pool.history()
    assert check_history(events).violations == ()
    assert turns_of(events) == dict.fromkeys(NAMES, 400)


def test_killed_holders(url: str, tmp_path: Path, go_judge: GoJudge) -> None:
    """SIGKILL at random moments: the store stays usable, somebody enters each time.

    How soon is measured by the soak (``nox -s kills_and_cancels``).
    """
    count = {"sqlite": 20, "redis": 8}[store_of(url)]
    _, gaps = kills.run(url, tmp_path, kills=count, seed=1)
    assert len(gaps) == count
    verdict = go_judge(sorted(tmp_path.glob("*.jsonl")), kills.LEASE * 1000)
    assert verdict.ok, verdict


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_paused_past_its_lease(url: str, tmp_path: Path, go_judge: GoJudge) -> None:
    """SIGSTOP for two leases: the process gets LockLost, its fence is refused."""
    plan = {"tasks": 2, "writes": 1.0, "lease": LEASE, "body": 0.05}
    with WorkerPool(url, tmp_path) as pool:
        first = pool.start(**plan)
        pool.start(**plan)
        for _ in range(4):
            with pool.paused(first):
                anyio.run(anyio.sleep, 2 * LEASE)
            anyio.run(anyio.sleep, 0.2)
        for name in pool.names:
            pool.kill(name)
        # The other one may lose a lease, too: on a machine that is busy enough.
        events = judged(pool, go_judge, LEASE)
    assert {e.process for e in events if isinstance(e, Granted)} == {"w0", "w1"}


@pytest.mark.parametrize("turns", [100])
def test_nobody_starves_among_readers_and_writers(
    url: str, tmp_path: Path, go_judge: GoJudge, turns: int
) -> None:
    """Mostly readers: the writers get their turns all the same."""
    with WorkerPool(url, tmp_path) as pool:
        for _ in range(2):
            pool.start(tasks=10, turns=turns // 10, writes=0.1, lease=30)
        pool.join()
        events = judged(pool, go_judge, 30)
    assert sum(isinstance(e, Granted) for e in events) == 2 * turns
