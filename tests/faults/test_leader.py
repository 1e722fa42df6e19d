"""Candidates of an election in processes: killed, paused, cut off from their store.

Judged by their history: no two leaders at once that may write, no fence that goes back.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aiorwlock_remote.testing.checker import check_history
from aiorwlock_remote.testing.history import Event, Granted, now
from tests.faults.shared_store import LOOPS, FourWorkers
from tests.faults.store_outages import Outage
from tests.faults.workers import WorkerPool
from tests.servers.process import until

LEASE = 1.0
PATIENCE = 60.0


class Election:
    """Four candidates, and who leads."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self._crowd = FourWorkers(pool)
        for loop in LOOPS:
            pool.start(loop=loop, lease=LEASE)

    def leader(self, after: int = 0) -> str:
        """Wait until there is one, elected after a moment of ``now()``."""
        until(lambda: bool(self._crowd.granted(after)), "one leads", PATIENCE)
        return self._crowd.granted(after)[-1].process


def judged(pool: WorkerPool) -> list[Event]:
    for name in pool.names:
        pool.kill(name)
    events = pool.history()
    assert check_history(events).violations == ()
    return events


@pytest.mark.slow
def test_one_leads_whatever_happens(site: tuple[str, Outage], tmp_path: Path) -> None:
    url, outage = site
    with WorkerPool(url, tmp_path, "tests.faults.candidate") as pool:
        election = Election(pool)
        for _ in range(2):
            since = now()
            pool.kill(election.leader())
            pool.start(lease=LEASE)
            election.leader(since)
        paused, since = election.leader(), now()
        with pool.paused(paused):
            assert election.leader(since) != paused
        for _ in range(2):
            with outage():
                time.sleep(2 * LEASE)
                back = now()
            election.leader(back)
        since, leaving = now(), election.leader()
        pool.leave(leaving)
        assert election.leader(since) != leaving
        events = judged(pool)
    elected = [event for event in events if isinstance(event, Granted)]
    fences = [one.fence for one in sorted(elected, key=lambda one: one.at)]
    assert len(fences) >= 7
    assert fences == sorted(set(fences))


@pytest.mark.slow
def test_control_two_elections_at_one_resource(tmp_path: Path) -> None:
    """The judge would see two leaders: here are two."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with WorkerPool(url, tmp_path, "tests.faults.candidate") as pool:
        workers = FourWorkers(pool)
        for number in range(2):
            pool.start(fenced=False, election=f"scheduler {number}")
        until(lambda: len(workers.granted(0)) == 2, "both lead", PATIENCE)
        time.sleep(0.1)
        for name in pool.names:
            pool.kill(name)
        kinds = {found.kind for found in check_history(pool.history()).violations}
    assert "exclusion" in kinds
