"""50 tasks of one process want the same lock; who holds it yields to the loop once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel

from benchmarks.loops import run
from benchmarks.peer import Cycle, Peer

NAME = "50 tasks"
TASKS = 50
TURNS = {"memory": 40, "sqlite": 6, "files": 6}


def fits(peer: Peer) -> bool:
    """Any lock that can be waited for."""
    return peer.waits


def measure(
    peer: Peer, loop: str, folder: Path, size: float, seed: int
) -> dict[str, float]:
    """Microseconds per turn, from the first acquire to the last release."""
    del seed
    turns = max(1, int(TURNS[peer.family] * size))
    return {"turn, µs": run(loop, _turns, peer, folder, turns) * 1e6}


async def _turns(peer: Peer, folder: Path, turns: int) -> float:
    async with peer.open(folder) as lock:
        async with lock():
            pass
        started = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(TASKS):
                group.start_soon(_take_turns, lock, turns)
        return (time.perf_counter() - started) / (TASKS * turns)


async def _take_turns(lock: Callable[[], Cycle], turns: int) -> None:
    for _ in range(turns):
        async with lock():
            await anyio.lowlevel.checkpoint()
