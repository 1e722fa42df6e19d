"""The scenarios on Cassandra. A new one is a function and a line in ``SCENARIOS``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.cassandra.adapters import (
    CALLS,
    EAGER,
    FLOOR,
    FLOOR_READ,
    NAIVE,
    OURS,
    UNFAIR,
    WOKEN,
)
from benchmarks.cassandra.server import KEYSPACES, Server
from benchmarks.harness.measures import (
    HAND_OVER_TITLE,
    TASKS_OF_PROCESSES,
    WAITERS_TITLE,
    cycle_times,
    hand_overs,
    own_key_cycles,
    take_turns,
    turns_at_one_key,
    waiters,
)
from benchmarks.harness.scenario import Measured, Round, Scenario, on_asyncio

ALONE_CYCLES = 600
CYCLE = "cycle p50, ms"
BOUND_CYCLE = "cycle p50, the client on one core, ms"
"""The cycle of a program that is bound to a core, which the driver's threads share."""
CHANGES_A_CYCLE = "transactions a cycle"
READS_A_CYCLE = "reads a cycle"
CHANGES = "transactions/s"
READS = "reads/s"
TASKS = 64
TASKS_OF_ONE_PROCESS = (50,)


def measure_alone(round_: Round[Server]) -> Measured:
    """Measure the cycles of one task, and what arrived at the server."""
    cycles = round_.count(40, ALONE_CYCLES)
    before = round_.server.requests()
    took = _milliseconds(round_, cycles, one_core=False)
    after = round_.server.requests()
    bound = _milliseconds(round_, cycles, one_core=True)
    measured: Measured = {
        CYCLE: [statistics.median(took)],
        "cycle p95, ms": [statistics.quantiles(took, n=20)[18]],
        BOUND_CYCLE: [statistics.median(bound)],
    }
    if before is not None and after is not None:
        came, count = after - before, cycles + cycles // 10
        measured[CHANGES_A_CYCLE] = [came.changes / count]
        measured[READS_A_CYCLE] = [came.reads / count]
    return measured


def _milliseconds(round_: Round[Server], cycles: int, *, one_core: bool) -> list[float]:
    took = cycle_times(round_, cycles, "mutex", "order/1", one_core=one_core)
    return [micros / 1e3 for micros in took]


def measure_own_keys(round_: Round[Server]) -> Measured:
    """Measure tasks of which each has a resource, and a partition, of its own."""
    return own_key_cycles(round_, TASKS, "order/{task}", round_.amount(0.4, 4.0))


def measure_one_key(tasks: Sequence[int], round_: Round[Server]) -> Measured:
    """Measure the turns at one resource, of so many tasks in each process."""
    seconds = round_.amount(1.0, 8.0)
    before = round_.server.requests()
    window, measured = turns_at_one_key(round_, tasks, seconds)
    after = round_.server.requests()
    if before is not None and after is not None:
        came = after - before
        measured[CHANGES_A_CYCLE] = [came.changes / len(window.turns)]
        measured[READS_A_CYCLE] = [came.reads / len(window.turns)]
    return measured


def measure_waiters(round_: Round[Server]) -> Measured:
    """Measure a thousand tasks that wait, by requests, connections and drain."""

    def watch(seconds: float) -> Measured:
        first, began = round_.server.requests(), time.monotonic()
        time.sleep(seconds)
        last, took = round_.server.requests(), time.monotonic() - began
        if first is None or last is None:
            return {}
        came = last - first
        return {CHANGES: [came.changes / took], READS: [came.reads / took]}

    return waiters(round_, watch)


def measure_layouts(round_: Round[Server]) -> Measured:
    """Measure ids of one type, and types, with either primary key."""
    seconds = round_.amount(0.3, 3.0)
    layouts = {"pair": "pair as key", "type": "published key"}
    measured: Measured = {}
    for layout in KEYSPACES:
        for what, key in (("ids of a type", "order/{task}"), ("types", "o{task}/1")):
            job = round_.job("take_turns", tasks=TASKS, key=key, seconds=seconds)
            job = replace(job, url=round_.server.url(layout))
            window = take_turns(round_, [job])
            metric = f"cycles/s, {layouts[layout]}, {TASKS} {what}"
            measured[metric] = [len(window.counted()) / seconds]
    return measured


SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "alone",
            "one task, acquire and release",
            (*on_asyncio(FLOOR, FLOOR_READ, OURS, CALLS), (OURS, "trio")),
            measure_alone,
        ),
        Scenario(
            "own-keys",
            f"{TASKS} tasks, {TASKS} keys, one process",
            on_asyncio(FLOOR, OURS, CALLS),
            measure_own_keys,
        ),
        Scenario(
            "one-key",
            "50 tasks of one process, one key, nothing to do inside",
            on_asyncio(EAGER, NAIVE, OURS, UNFAIR),
            partial(measure_one_key, TASKS_OF_ONE_PROCESS),
        ),
        Scenario(
            "one-key-processes",
            "50 tasks of 4 processes, one key, nothing to do inside",
            on_asyncio(NAIVE, OURS, UNFAIR),
            partial(measure_one_key, TASKS_OF_PROCESSES),
        ),
        Scenario("waiters", WAITERS_TITLE, on_asyncio(OURS), measure_waiters),
        Scenario(
            "layouts", "layouts of the table", on_asyncio(FLOOR, OURS), measure_layouts
        ),
        Scenario(
            "hand-over", HAND_OVER_TITLE, on_asyncio(NAIVE, OURS, WOKEN), hand_overs
        ),
    )
}
