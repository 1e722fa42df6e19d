"""Two processes want the same lock: how long from one's release to the other's grant.

Each holds it for 0 to 5 ms, at random, so that nothing gets into step. Both write down
when they were in and when they began to release, on a clock all processes share.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from benchmarks.peer import Peer

NAME = "2 processes"
WORKER = "benchmarks.worker"
PROCESSES = 2
TURNS = 100

Stay = tuple[float, float, int]
"""Got in, began to release, which process."""


def fits(peer: Peer) -> bool:
    """A lock that one process at a time can hold."""
    return peer.processes and not peer.shared


def measure(
    peer: Peer, loop: str, folder: Path, size: float, seed: int
) -> dict[str, float]:
    """How long a hand-over takes, and how many of the turns were one."""
    turns = max(5, int(TURNS * size))
    command = [sys.executable, "-m", WORKER, peer.name, loop, str(folder), str(turns)]
    workers = [_ready([*command, str(seed + n)]) for n in range(PROCESSES)]
    stays: list[Stay] = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    for number, worker in enumerate(workers):
        out, _ = worker.communicate(timeout=300)
        stays += [(got_in, left, number) for got_in, left in json.loads(out)]
    return _hand_overs(sorted(stays))


def _ready(command: list[str]) -> subprocess.Popen[str]:
    """A process that has opened the store, and waits for the word."""
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def _hand_overs(stays: list[Stay]) -> dict[str, float]:
    for before, after in pairwise(stays):
        assert before[1] <= after[0], "two processes held the lock at the same time"
    took = [
        (after[0] - before[1]) * 1e6
        for before, after in pairwise(stays)
        if before[2] != after[2]
    ]
    found = {"hand-overs in 100 turns": 100 * len(took) / len(stays)}
    if len(took) > 1:  # a lock that is not fair hardly ever changes hands
        found["hand-over p50, µs"] = statistics.median(took)
        found["hand-over p95, µs"] = statistics.quantiles(took, n=20)[18]
    return found
