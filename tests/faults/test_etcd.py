"""etcd: a ring of three whose leaders are killed and paused, and that is restarted.

No grant is lost: a majority has it before its caller. What four processes saw is
judged, and the fences of all grants are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote.testing.history import now
from tests.faults.shared_store import FourWorkers, acquit
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.long import RUNS as LONG_ONES_RUN
from tests.servers.etcd import EtcdRing
from tests.servers.fix_etcd import StartEtcdRing

pytestmark = pytest.mark.slow


def test_leaders_are_killed_and_paused(
    start_etcd_ring: StartEtcdRing, tmp_path: Path, go_judge: GoJudge
) -> None:
    ring = start_etcd_ring()
    with WorkerPool(url_of(ring), tmp_path) as pool:
        workers = FourWorkers(pool)
        workers.start()
        workers.goes_on("begun")

        for turn in range(2 if LONG_ONES_RUN else 1):
            leader = ring.leader
            since = now()
            leader.kill()
            workers.goes_on(f"killed {turn}", since)
            leader.start()

        leader = ring.leader
        since = now()
        leader.pause()
        try:
            workers.goes_on("paused", since)
        finally:
            leader.resume()

        restarted = ring.members if LONG_ONES_RUN else ring.members[:1]
        for member in restarted:  # one by one, as for a new version
            since = now()
            member.stop()
            workers.goes_on(f"{member.folder.name} stopped", since)
            member.start()
        workers.takes_turns(100 if LONG_ONES_RUN else 30)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    assert verdict.grants > 30
    print(workers.gaps, verdict.grants)


def url_of(ring: EtcdRing) -> str:
    # All processes have one clock, and a machine that may stand still.
    return f"{ring.url}?clock_skew=0"
