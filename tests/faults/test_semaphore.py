"""Holders of permits in processes: killed, stopped past their lease, cut off.

Judged by their history: never more holders than permits, and no fence twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from aiorwlock_remote.testing.history import Died, Event, Granted, Lost, Releasing, now
from tests.faults.shared_store import LOOPS, FourWorkers
from tests.faults.store_outages import Outage
from tests.faults.workers import WorkerPool
from tests.second_look import second_look
from tests.servers.process import until

pytestmark = pytest.mark.slow

LIMIT = 3
LEASE = 1.0
PATIENCE = 60.0


def most_at_once(events: Iterable[Event]) -> int:
    """Return how many permits were held at a time, at most.

    A permit is held until its holder gives it back, finds it lost, or is dead, or its
    local deadline is over, whichever comes first.
    """
    begins: dict[str, Granted] = {}
    ends: dict[str, int] = {}
    died: dict[str, int] = {}
    for event in events:
        if isinstance(event, Granted):
            begins[event.holder] = event
        elif isinstance(event, Releasing):
            until = event.at if event.until is None else event.until
            ends[event.holder] = min(event.at, until)
        elif isinstance(event, Lost):
            ends.setdefault(event.holder, event.at)
        elif isinstance(event, Died):
            died[event.process] = event.at
    changes: list[tuple[int, int]] = []
    for holder, granted in begins.items():
        assert granted.until is not None
        end = ends.get(holder, min(granted.until, died.get(granted.process, now())))
        changes += [(granted.at, 1), (max(granted.at, end), -1)]
    inside = most = 0
    for _, change in sorted(changes):
        inside += change
        most = max(most, inside)
    return most


@second_look("somebody has to enter so many seconds after each outage")
def test_never_more_holders_than_permits(
    site: tuple[str, Outage], tmp_path: Path
) -> None:
    url, outage = site
    with WorkerPool(url, tmp_path, "tests.faults.permit_holder") as pool:
        workers = FourWorkers(pool)

        def others_enter(but: str = "", seconds: float = PATIENCE) -> None:
            since = now()
            until(
                lambda: any(g.process != but for g in workers.granted(since)),
                "a permit is given out",
                seconds,
            )

        def stop_past_its_lease(name: str) -> None:
            # A process that is stopped within a transaction of SQLite locks everybody
            # out for as long. It is stopped at another moment then.
            for _ in range(4 if url.startswith("sqlite") else 0):
                with pool.paused(name), suppress(TimeoutError):
                    time.sleep(1.5 * LEASE)
                    others_enter(name, 10.0)
                    return
            with pool.paused(name):
                time.sleep(1.5 * LEASE)
                others_enter(name)

        for loop in LOOPS:
            pool.start(loop=loop, lease=LEASE, limit=LIMIT)
        for _ in range(2):
            others_enter()
            pool.kill(pool.names[0])
            pool.start(lease=LEASE, limit=LIMIT)
            stop_past_its_lease(pool.names[1])
            with outage():
                time.sleep(0.5 * LEASE)
        others_enter()
        for name in pool.names:
            pool.kill(name)
        events = pool.history()
    assert most_at_once(events) == LIMIT
    fences = [event.fence for event in events if isinstance(event, Granted)]
    assert len(set(fences)) == len(fences)


def test_the_judge_sees_a_greater_limit(tmp_path: Path) -> None:
    """Control: processes that allow themselves one holder more."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with WorkerPool(url, tmp_path, "tests.faults.permit_holder") as pool:
        workers, since = FourWorkers(pool), now()
        for _ in range(2):
            pool.start(limit=LIMIT + 1)
        until(lambda: len(workers.granted(since)) > 50, "fifty permits", PATIENCE)
        for name in pool.names:
            pool.kill(name)
        assert most_at_once(pool.history()) > LIMIT
