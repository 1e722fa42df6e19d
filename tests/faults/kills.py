"""The soak of killed holders: ``python -m tests.faults.kills [KILLS]``.

Four processes share one SQLite resource; one of them, chosen and timed at random, is
killed again and again. Tells how long nobody entered after each kill, against the bar
of lease + 250 ms, and what the judge found.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from aiorwlock_remote.testing.checker import Verdict, check_history
from aiorwlock_remote.testing.history import Granted, now
from tests.faults.workers import WorkerPool

LEASE = 0.5
BAR = LEASE + 0.25


def run(url: str, folder: Path, kills: int, seed: int) -> tuple[Verdict, list[float]]:
    """Kill; the verdict, and for each kill the seconds until somebody entered."""
    random.seed(seed)
    plan = {"tasks": 4, "writes": 0.7, "lease": LEASE, "body": 0.02}
    times = []
    with WorkerPool(url, folder) as pool:
        for _ in range(4):
            pool.start(**plan)
        for _ in range(kills):
            time.sleep(random.uniform(0.05, 0.15))
            times.append(now())
            pool.kill(random.choice(pool.names))
            pool.start(**plan)
        time.sleep(2 * BAR)
        for name in pool.names:
            pool.kill(name)
        events = pool.history()
    entered = sorted(e.at for e in events if isinstance(e, Granted))
    gaps = [(next(at for at in entered if at > t) - t) / 1e9 for t in times]
    return check_history(events), gaps


def main() -> None:
    """Run and report; exit 1 below the bar."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = random.randrange(2**32)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/locks.db"
        verdict, gaps = run(url, Path(folder), kills, seed)
    gaps.sort()
    late = sum(gap > BAR for gap in gaps)
    print(f"seed {seed}: {kills} kills, {verdict.grants} grants")
    print(
        f"entered after a kill: p50 {gaps[len(gaps) // 2]:.3f} s, "
        f"p99 {gaps[int(len(gaps) * 0.99)]:.3f} s, longest {gaps[-1]:.3f} s; "
        f"{late} later than lease + 250 ms = {BAR} s"
    )
    print(f"violations: {len(verdict.violations)}")
    for violation in verdict.violations:
        print(f"  {violation}")
    sys.exit(1 if verdict.violations or late else 0)


if __name__ == "__main__":
    main()
