"""Measure what failovers cost: ``python -m tests.failovers TOPOLOGY … --rounds 5``.

Writes ``docs/evidence/failovers/TOPOLOGY.json``; ``python -m docs.pictures.failovers``
draws the picture and the table of docs/howto/failover.md from these files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from aiorwlock_remote.testing.history import Granted, decode_event, now
from tests.failovers.judge import SECOND, Cost, fences_gone_back, judge
from tests.failovers.topologies import TOPOLOGIES, Topology
from tests.faults.workers import ROOT, HistoryTail, WorkerPool
from tests.servers.process import until
from tests.soak.__main__ import commit
from tests.soak.site import machine

PROCESSES = 3
LEASE = 8.0
"""Seconds: longer than any of these failovers, as a lease should be."""
ROUNDS = 5
PATIENCE = 90.0
"""Seconds in which every process is to be let in again."""
EVIDENCE = ROOT / "docs" / "evidence" / "failovers"


@dataclass(frozen=True)
class Window:
    """One failover: when it began, and when the clients had settled."""

    way: str
    begun: int
    ended: int


class Run:
    """The clients of one topology, through all its failovers."""

    def __init__(
        self, topology: Topology, folder: Path, *, processes: int, lease: float
    ) -> None:
        self._topology = topology
        self._lease = lease
        self._pool = WorkerPool(topology.url, folder, "tests.failovers.client")
        self._tail = HistoryTail(folder)
        self._latest: dict[str, int] = {}
        self._processes = processes
        self.windows: list[Window] = []

    def __enter__(self) -> Self:
        names = ",".join(map(str, self._topology.names()))
        self._pool.__enter__()
        for _ in range(self._processes):
            self._pool.start(names=names, lease=self._lease)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__(None, None, None)

    def fail_over(self, way: str) -> None:
        """Replace the leader in one way, let the clients settle, and mend the store."""
        self._all_are_let_in()
        time.sleep(random.uniform(1.0, 1.0 + self._lease / 3))
        begun = now()
        getattr(self._topology, way)()
        self._all_are_let_in()
        # By then each holder has renewed its grant, or has lost it.
        time.sleep(self._lease / 2)
        self.windows.append(Window(way, begun, now()))
        self._topology.make_whole()

    def costs(self) -> Iterator[tuple[str, Cost]]:
        """Yield what each failover cost."""
        events = self._pool.history()
        for window in self.windows:
            yield window.way, judge(events, window.begun, window.ended)

    def fences_gone_back(self) -> int:
        return fences_gone_back(self._pool.history())

    def _all_are_let_in(self) -> None:
        since = now()

        def entered() -> bool:
            for event in map(decode_event, self._tail.lines()):
                if isinstance(event, Granted):
                    self._latest[event.process] = event.at
            return all(self._latest.get(n, 0) > since for n in self._pool.names)

        until(entered, "every process is let in", PATIENCE, every=0.05)


@contextmanager
def started(name: str) -> Iterator[Topology]:
    """Start a topology, in a folder that servers' users may enter."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        Path(folder).chmod(0o755)
        topology = TOPOLOGIES[name](Path(folder))
        try:
            yield topology
        finally:
            topology.close()


def measure(
    name: str, rounds: int, ways: Sequence[str] = (), lease: float = LEASE
) -> Iterator[dict[str, Any]]:
    """Make so many failovers of each way; after each round, yield what they cost."""
    facts: dict[str, Any] = {
        "topology": name,
        "command": f"python -m tests.failovers {name} --rounds {rounds}"
        f" --lease {lease:g}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(),
        "machine": machine(),
        "cores": os.cpu_count(),
        "load at the beginning": [round(each, 1) for each in os.getloadavg()],
        "lease": lease,
        "processes": PROCESSES,
    }
    histories = Path(tempfile.mkdtemp(prefix=f"{name}-histories-"))
    with started(name) as topology:
        facts["setting"] = topology.setting
        facts["promoted by"] = topology.promoted_by
        facts["versions"] = {
            "Python": platform.python_version(),
            **topology.versions(),
        }
        ways = [way for way in topology.ways if way in (ways or topology.ways)]
        with Run(topology, histories, processes=PROCESSES, lease=lease) as run:
            for number in range(rounds):
                for way in ways:
                    run.fail_over(way)
                    window = run.windows[-1]
                    took = (window.ended - window.begun) / SECOND
                    print(f"{name}: {number + 1} {way}, {took:.1f} s", file=sys.stderr)
                costs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
                for way, cost in run.costs():
                    costs[way].append(asdict(cost))
                gone_back = run.fences_gone_back()
                yield {**facts, "ways": costs, "fences gone back": gone_back}
    shutil.rmtree(histories)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.failovers")
    parser.add_argument("topology", nargs="+", choices=TOPOLOGIES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ways", nargs="+", default=())
    parser.add_argument("--lease", type=float, default=LEASE)
    parser.add_argument("--evidence", type=Path, default=EVIDENCE)
    given = parser.parse_args()
    given.evidence.mkdir(parents=True, exist_ok=True)
    for name in given.topology:
        for figures in measure(name, given.rounds, given.ways, given.lease):
            text = json.dumps(figures, indent=1) + "\n"
            (given.evidence / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
