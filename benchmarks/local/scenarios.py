"""The scenarios of locks that need no server: alone, many tasks, two processes."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import anyio
from anyio.lowlevel import checkpoint

from benchmarks.harness.lock import Client, Cycle, run_on
from benchmarks.harness.scenario import Entrants, Measured, Round, Scenario
from benchmarks.local.adapters import (
    ASYNCIO_ONLY,
    FILE_FLOOR,
    FILE_MUTEX,
    FILE_MUTEX_UNSYNCED,
    FILELOCK,
    PEERS,
    SQLITE_BLOCKING,
    SQLITE_FLOOR,
    SQLITE_MUTEX,
    SQLITE_WRITER,
    TRIO_ONLY,
    kind_of,
    opener,
    url_of,
)

CYCLE = "cycle, µs"
CYCLES = {"memory": 4000, "sqlite": 300, "files": 300}
TASKS = 50
TURNS_OF_A_TASK = {"memory": 40, "sqlite": 6, "files": 6}
TURNS_OF_A_PROCESS = 100
LEASE = 30.0
LONGEST_HOLD = 0.005
"""Seconds for which a process holds the lock at most."""
QUICK = 0.02
"""Share of the cycles that a quick round makes."""

BETWEEN_PROCESSES = (
    *(SQLITE_MUTEX, SQLITE_WRITER, SQLITE_FLOOR),
    *(FILE_MUTEX, FILE_MUTEX_UNSYNCED, FILE_FLOOR, FILELOCK),
)
"""Peers of which one process at a time holds the lock."""


class Folder:
    """In place of a server: a new folder for each round."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def empty(self) -> None:
        """Do nothing: the folder of the next round is another one."""

    def url_for(self, peer: str, seed: int) -> str:
        """Return where a peer finds its locks in the round with that seed."""
        folder = self._path / str(seed)
        folder.mkdir(exist_ok=True)
        return url_of(peer, str(folder))

    def process_ids(self) -> list[int]:
        """Return nothing: this server's CPU time is not measured."""
        return []

    def connections(self) -> int:
        """Return 0: there is no server to connect to."""
        return 0


def measure_alone(round_: Round[Folder]) -> Measured:
    """Measure the mean cycle of one task that has no competitor."""
    cycles = max(5, _part(round_, CYCLES[kind_of(round_.peer)]))
    return {CYCLE: [_in_this_process(round_, _cycles, cycles) * 1e6]}


def measure_tasks(round_: Round[Folder]) -> Measured:
    """Measure the mean turn of tasks that take turns; the holder yields once."""
    turns = max(1, _part(round_, TURNS_OF_A_TASK[kind_of(round_.peer)]))
    return {"turn, µs": [_in_this_process(round_, _turns, turns) * 1e6]}


def _in_this_process(
    round_: Round[Folder],
    measure: Callable[[Client, int], Awaitable[float]],
    count: int,
) -> float:
    """Return what ``measure`` returns for a client of the round's peer."""

    async def measured() -> float:
        async with opener(round_.peer)(url, LEASE) as client:
            return await measure(client, count)

    url = round_.server.url_for(round_.peer, round_.seed)
    # What earlier peers left behind must not be collected while this one is timed.
    gc.collect()
    return run_on(round_.loop, measured)


async def _cycles(client: Client, count: int) -> float:
    lock = await client.lock("key", "mutex")
    for _ in range(max(1, count // 10)):
        async with lock:
            pass
    # Reading the clock takes a quarter of a cycle of asyncio.Lock: so the cycles are
    # timed together.
    started = perf_counter()
    for _ in range(count):
        async with lock:
            pass
    return (perf_counter() - started) / count


async def _turns(client: Client, count: int) -> float:
    locks = [await client.lock("key", "mutex") for _ in range(TASKS)]
    async with locks[0]:
        pass
    started = perf_counter()

    async def take_turns(lock: Cycle) -> None:
        for _ in range(count):
            async with lock:
                await checkpoint()

    async with anyio.create_task_group() as group:
        for lock in locks:
            group.start_soon(take_turns, lock)
    return (perf_counter() - started) / (TASKS * count)


def measure_processes(round_: Round[Folder]) -> Measured:
    """Measure the hand-overs of two processes, and how many turns were one."""
    turns = max(5, _part(round_, TURNS_OF_A_PROCESS))
    job = round_.job("hold_at_random", cycles=turns, section=LONGEST_HOLD)
    other = replace(job, seed=job.seed + 1)
    with round_.workers(job, other) as workers:
        for worker in workers:
            worker.send("go")
        stays = sorted(
            (got_in, left, number)
            for number, worker in enumerate(workers)
            for got_in, left in worker.receive("stays")["stays"]
        )
    for before, after in pairwise(stays):
        assert before[1] <= after[0], "two processes held the lock at the same time"
    took = [
        (after[0] - before[1]) * 1e6
        for before, after in pairwise(stays)
        if before[2] != after[2]
    ]
    measured = {"hand-overs in 100 turns": [100 * len(took) / len(stays)]}
    # A lock that is not fair hardly ever changes hands, least of all in a quick round.
    if len(took) > 1:
        measured["hand-over p50, µs"] = [statistics.median(took)]
        measured["hand-over p95, µs"] = [statistics.quantiles(took, n=20)[18]]
    return measured


def _part(round_: Round[Folder], count: int) -> int:
    return int(count * (QUICK if round_.quick else round_.scale))


def _entrants(fits: Callable[[str], bool]) -> Entrants:
    return tuple(
        (peer, loop)
        for loop in ("asyncio", "uvloop", "trio")
        for peer in PEERS
        if fits(peer) and peer not in (ASYNCIO_ONLY if loop == "trio" else TRIO_ONLY)
    )


SCENARIOS: dict[str, Scenario[Folder]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "alone",
            "one task acquires and releases",
            _entrants(lambda peer: peer in PEERS),
            measure_alone,
        ),
        Scenario(
            "one-key",
            f"{TASKS} tasks of one process take turns",
            # The blocking peer would wait for a task of its own thread.
            _entrants(lambda peer: peer != SQLITE_BLOCKING),
            measure_tasks,
        ),
        Scenario(
            "two-processes",
            "two processes take turns, each for 0 to 5 ms",
            _entrants(lambda peer: peer in BETWEEN_PROCESSES),
            measure_processes,
        ),
    )
}
