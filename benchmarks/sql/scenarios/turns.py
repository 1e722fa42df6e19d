"""Q2, Q3: tasks take turns for a while, in one process or in several."""

from __future__ import annotations

from benchmarks.shared.scenario import Measured, Round, Scenario
from benchmarks.shared.turns import CYCLES, judged, run
from benchmarks.sql.adapters import ADVISORY, DLOCK, FLOOR, MARIADB_OURS, OURS
from benchmarks.sql.server import Server

TASKS = 64
CROWDS = (13, 13, 12, 12)
"""Tasks of each process that wants the one key."""


def measure_keys(round_: Round[Server]) -> Measured:
    """Every task has a resource of its own."""
    seconds = 0.4 if round_.quick else 4.0
    job = round_.job("turns", tasks=TASKS, key="order/{task}", seconds=seconds)
    return {CYCLES: [len(run(round_, [job]).counted()) / seconds]}


def measure_key(round_: Round[Server]) -> Measured:
    """All tasks of all processes want the same."""
    seconds = 1.0 if round_.quick else 6.0
    crowds = [2] * len(CROWDS) if round_.quick else CROWDS
    jobs = [
        round_.job("turns", tasks=tasks, key="order/1", seconds=seconds)
        for tasks in crowds
    ]
    return judged(run(round_, jobs), crowds)


Q2: Scenario[Server] = Scenario(
    "Q2",
    f"{TASKS} tasks, {TASKS} keys, one process",
    tuple((peer, "asyncio") for peer in (FLOOR, OURS, ADVISORY)),
    measure_keys,
)
Q3: Scenario[Server] = Scenario(
    "Q3",
    "50 tasks of 4 processes, one key, nothing to do inside",
    tuple((peer, "asyncio") for peer in (OURS, ADVISORY, DLOCK, MARIADB_OURS)),
    measure_key,
)
