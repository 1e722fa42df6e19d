"""Candidates of an election in processes: killed, paused, cut off from their store.

Judged by their history: no two leaders at once that may write, no fence that goes back.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aiorwlock_remote.testing.checker import check_history
from aiorwlock_remote.testing.history import Event, Granted, now
from tests.faults.shared_store import LOOPS, WorkerProcesses
from tests.faults.store_outages import Outage
from tests.faults.workers import Fleet
from tests.servers.process import until

LEASE = 1.0
PATIENCE = 60.0


class Election:
    """Four candidates, and who leads."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._crowd = WorkerProcesses(fleet)
        for loop in LOOPS:
            fleet.start(loop=loop, lease=LEASE)

    def leader(self, after: int = 0) -> str:
        """Wait until there is one, elected after a moment of ``now()``."""
        until(lambda: bool(self._crowd.granted(after)), "one leads", PATIENCE)
        return self._crowd.granted(after)[-1].process


def judged(fleet: Fleet) -> list[Event]:
    for name in fleet.names:
        fleet.kill(name)
    events = fleet.history()
    assert check_history(events).violations == ()
    return events


@pytest.mark.slow
def test_one_leads_whatever_happens(site: tuple[str, Outage], tmp_path: Path) -> None:
    url, outage = site
    with Fleet(url, tmp_path, "tests.faults.candidate") as fleet:
        election = Election(fleet)
        for _ in range(2):
            since = now()
            fleet.kill(election.leader())
            fleet.start(lease=LEASE)
            election.leader(since)
        paused, since = election.leader(), now()
        with fleet.paused(paused):
            assert election.leader(since) != paused
        for _ in range(2):
            with outage():
                time.sleep(2 * LEASE)
                back = now()
            election.leader(back)
        since, leaving = now(), election.leader()
        fleet.leave(leaving)
        assert election.leader(since) != leaving
        events = judged(fleet)
    elected = [event for event in events if isinstance(event, Granted)]
    fences = [one.fence for one in sorted(elected, key=lambda one: one.at)]
    assert len(fences) >= 7
    assert fences == sorted(set(fences))


@pytest.mark.slow
def test_control_two_elections_at_one_resource(tmp_path: Path) -> None:
    """The judge would see two leaders: here are two."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with Fleet(url, tmp_path, "tests.faults.candidate") as fleet:
        workers = WorkerProcesses(fleet)
        for number in range(2):
            fleet.start(fenced=False, election=f"scheduler {number}")
        until(lambda: len(workers.granted(0)) == 2, "both lead", PATIENCE)
        time.sleep(0.1)
        for name in fleet.names:
            fleet.kill(name)
        kinds = {found.kind for found in check_history(fleet.history()).violations}
    assert "exclusion" in kinds
