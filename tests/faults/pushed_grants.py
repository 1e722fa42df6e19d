"""The hammer of grants by message.

``python -m tests.faults.pushed_grants SERVER [GRANTS]``, or ``nox -s pushed_grants``.
SERVER is ``redis`` or ``postgresql``, which start one of their own, or a URL.
Processes hand one resource to each other until it was granted so many times. Messages
are dropped, delayed past the claim window, doubled and forged; confirmations and their
replies are lost; processes are stopped and killed. The judge looks for two holders at a
time, and for fences that fall.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from aiorwlock_remote.testing.checker import Verdict, check_history
from tests.faults.workers import HistoryTail, WorkerPool
from tests.servers.fix_postgresql import make_tables
from tests.servers.postgresql import Postgresql
from tests.servers.redis import RedisServer

PLAN = {"tasks": 4, "writes": 0.95, "lease": 1.0, "body": 0.001, "hardy": True}
PROCESSES = 4
LONGEST_PAUSE = 2.0
"""Seconds between two blows at the processes, at most."""


def hammer(
    url: str, folder: Path, grants: int, *, gullible: bool = False
) -> tuple[Verdict, Counter[str]]:
    """Return what the judge found, and how often each thing was done.

    ``gullible``: the control, processes that believe any message.
    """
    done: Counter[str] = Counter()
    granted, tail, plan = 0, HistoryTail(folder), {**PLAN, "gullible": gullible}
    with WorkerPool(url, folder, program="tests.faults.messy_worker") as pool:
        for _ in range(PROCESSES):
            pool.start(**plan)
        while granted < grants:
            granted += sum(b'"e":"granted"' in line for line in tail.lines())
            time.sleep(random.uniform(0.0, LONGEST_PAUSE))
            name = random.choice(pool.names)
            blow = random.choices(["nothing", "stopped", "killed"], [60, 37, 3])[0]
            done[f"processes {blow}"] += 1
            if blow == "stopped":
                with pool.paused(name):
                    time.sleep(random.choice([0.01, 0.1, 0.3, 0.6]))
            elif blow == "killed":
                pool.kill(name)
                pool.start(**plan)
        for name in pool.names:
            pool.leave(name)
        events = pool.history()
    for path in folder.glob("*.faults"):
        done.update(json.loads(path.read_text("utf-8")))
    del done["processes nothing"]
    return check_history(events), done


@contextmanager
def serving(server: str) -> Iterator[str]:
    """Start a server of this kind, if it is not a URL; yield its URL."""
    if "://" in server:
        yield server
        return
    with tempfile.TemporaryDirectory() as folder:
        (home := Path(folder) / server).mkdir()
        started = Postgresql(home) if server == "postgresql" else RedisServer(home)
        with closing(started):
            if isinstance(started, Postgresql):
                make_tables(started.url)
            yield started.url


def main() -> None:
    """Run and report; exit 1 if a promise was broken."""
    server, *rest = sys.argv[1:]
    grants = int(rest[0]) if rest else 100_000
    seed, began = random.randrange(2**32), time.monotonic()
    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, serving(server) as url:
        verdict, done = hammer(url, Path(folder), grants)
    seconds = time.monotonic() - began
    print(f"seed {seed}: {verdict.grants} grants in {seconds:.0f} s")
    print(", ".join(f"{what}: {times}" for what, times in sorted(done.items())))
    print(f"violations: {len(verdict.violations)}")
    for violation in verdict.violations:
        print(f"  {violation}")
    sys.exit(1 if verdict.violations else 0)


if __name__ == "__main__":
    main()
