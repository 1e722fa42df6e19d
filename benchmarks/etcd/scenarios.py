"""The scenarios on etcd. A new one is a function and a line in ``SCENARIOS``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

from benchmarks.etcd.adapters import AETCD, FLOOR, KAZOO, MESSAGE, OURS, UNFAIR
from benchmarks.etcd.server import Server
from benchmarks.harness.measures import (
    HAND_OVER_TITLE,
    TASKS_OF_PROCESSES,
    WAITERS_TITLE,
    cycle_times,
    hand_overs,
    own_key_cycles,
    turns_at_one_key,
    waiters,
)
from benchmarks.harness.scenario import Measured, Round, Scenario, on_asyncio

ALONE_CYCLES = 600
CYCLE = "cycle p50, ms"
CALLS_A_CYCLE = "calls a cycle"
CALLS = "calls/s"
TASKS = 64
TASKS_OF_ONE_PROCESS = (50,)


def measure_alone(round_: Round[Server]) -> Measured:
    """Measure the cycles of one task, and the calls that arrived at the server."""
    cycles = round_.count(40, ALONE_CYCLES)
    before = round_.server.calls()
    took = cycle_times(round_, cycles, "mutex", "order/1", one_core=False)
    after = round_.server.calls()
    measured: Measured = {
        CYCLE: [statistics.median(took) / 1e3],
        "cycle p95, ms": [statistics.quantiles(took, n=20)[18] / 1e3],
    }
    if round_.peer != KAZOO:
        measured[CALLS_A_CYCLE] = [(after - before) / (cycles + cycles // 10)]
    return measured


def measure_own_keys(round_: Round[Server]) -> Measured:
    """Measure tasks of which each has a resource of its own."""
    return own_key_cycles(round_, TASKS, "order/{task}", round_.amount(0.4, 4.0))


def measure_one_key(tasks: Sequence[int], round_: Round[Server]) -> Measured:
    """Measure the turns at one resource, of so many tasks in each process."""
    return turns_at_one_key(round_, tasks, round_.amount(1.0, 6.0))[1]


def measure_waiters(round_: Round[Server]) -> Measured:
    """Measure a thousand tasks that wait, by calls, connections and drain."""

    def watch(seconds: float) -> Measured:
        first, began = round_.server.calls(), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        return {CALLS: [(round_.server.calls() - first) / took]}

    return waiters(round_, watch)


SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "alone",
            "one task, acquire and release",
            (*on_asyncio(FLOOR, OURS, AETCD, KAZOO), (OURS, "trio")),
            measure_alone,
        ),
        Scenario(
            "own-keys",
            f"{TASKS} tasks, {TASKS} keys, one process",
            on_asyncio(FLOOR, OURS, AETCD, KAZOO),
            measure_own_keys,
        ),
        Scenario(
            "one-key",
            "50 tasks of one process, one key, nothing to do inside",
            on_asyncio(OURS, UNFAIR, AETCD, KAZOO),
            partial(measure_one_key, TASKS_OF_ONE_PROCESS),
        ),
        Scenario(
            "one-key-processes",
            "50 tasks of 4 processes, one key, nothing to do inside",
            on_asyncio(OURS, UNFAIR, AETCD, KAZOO),
            partial(measure_one_key, TASKS_OF_PROCESSES),
        ),
        Scenario("waiters", WAITERS_TITLE, on_asyncio(OURS), measure_waiters),
        Scenario(
            "hand-over",
            HAND_OVER_TITLE,
            on_asyncio(MESSAGE, OURS, AETCD, KAZOO),
            hand_overs,
        ),
    )
}
