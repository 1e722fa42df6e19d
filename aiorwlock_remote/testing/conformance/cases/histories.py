"""Cases: readers and writers that come at random are judged by their histories."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import anyio
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, Locks, LockTimeout
from aiorwlock_remote.testing.checker import Verdict, check_history
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import AnyLock, lock_of
from aiorwlock_remote.testing.history import EventMode, History, now, read_history

SIDES: dict[str, EventMode] = {"reader": "R", "writer": "W", "mutex": "W"}
WEIGHTS = (6, 3, 1)
"""How often a visit asks for the reader, the writer and the mutex."""
PATIENT = 0.8
"""Share of the visits that wait for the lock; the others try once."""


async def random_visits(
    clients: Sequence[Locks], folder: Path, *, names: int, tasks: int, visits: int
) -> Verdict:
    """Let tasks acquire locks at random; return the judge's verdict on what they saw.

    Args:
        clients: each as a process.
        folder: an empty folder for the histories.
        names: number of locks.
        tasks: number of tasks of each client.
        visits: how often each task acquires one of the locks.
    """
    chance = Random(names)

    async def work(locks: Locks, history: History) -> None:
        for _ in range(visits):
            (side,) = chance.choices(tuple(SIDES), WEIGHTS)
            lock = lock_of(locks, side, ("random", chance.randrange(names)))
            timeout = None if chance.random() < PATIENT else 0
            await _visit(lock, history, SIDES[side], timeout, chance.randrange(5))

    paths = [folder / f"{number}.jsonl" for number in range(len(clients))]
    with ExitStack() as stack:
        async with anyio.create_task_group() as group:
            for locks, path in zip(clients, paths, strict=True):
                history = stack.enter_context(History(path, process=path.stem))
                for _ in range(tasks):
                    group.start_soon(work, locks, history)
    return check_history(read_history(paths))


async def _visit(
    lock: AnyLock, history: History, mode: EventMode, timeout: float | None, turns: int
) -> None:
    attempt = history.ask(lock.resource, mode)
    try:
        held = await lock.acquire(timeout)
    except LockTimeout:
        attempt.refused()
        return
    attempt.granted(fence=held.fence, until=_deadline(held))
    for _ in range(turns):
        await checkpoint()
    attempt.releasing(until=_deadline(held))
    attempt.released(ok=await held.release())


def _deadline(held: Held) -> int:
    # In nanoseconds of the history's clock.
    return now() + round(Cases.lease_left(held) * 1e9)


class HistoryCases(Cases):
    """No history of random readers and writers shows a broken promise."""

    async def test_random_readers_and_writers(self, tmp_path: Path) -> None:
        """Tasks of two processes acquire two locks in random modes and order."""
        verdict = await random_visits(
            (self.locks, self.others), tmp_path, names=2, tasks=4, visits=5
        )
        assert verdict.violations == ()
        assert verdict.grants > 0
        for number in range(2):
            await self.actors.nothing_left(self.locks.mutex("random", number))
