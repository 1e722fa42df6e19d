"""One task acquires and releases, and nobody else wants it: the cost of a cycle."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.loops import run
from benchmarks.peer import Peer

NAME = "alone"
CYCLES = {"memory": 4000, "sqlite": 300, "files": 300}


def fits(peer: Peer) -> bool:
    """Any lock."""
    del peer
    return True


def measure(
    peer: Peer, loop: str, folder: Path, size: float, seed: int
) -> dict[str, float]:
    """Microseconds per cycle, of so many in a row."""
    del seed
    cycles = max(5, int(CYCLES[peer.family] * size))
    return {"cycle, µs": run(loop, _cycles, peer, folder, cycles) * 1e6}


async def _cycles(peer: Peer, folder: Path, cycles: int) -> float:
    async with peer.open(folder) as lock:
        for _ in range(max(1, cycles // 10)):
            async with lock():
                pass
        started = time.perf_counter()
        for _ in range(cycles):
            async with lock():
                pass
        return (time.perf_counter() - started) / cycles
