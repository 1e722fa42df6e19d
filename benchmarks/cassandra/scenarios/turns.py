"""C2, C3, C5: tasks take turns for a while, in one process or in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.cassandra.adapters import CALLS, EAGER, FLOOR, NAIVE, OURS, UNFAIR
from benchmarks.cassandra.server import KEYSPACES, Server
from benchmarks.shared.scenario import Measured, Round, Scenario
from benchmarks.shared.turns import CYCLES, judged, run

TASKS = 64
CHANGES = "transactions a cycle"
READS = "reads a cycle"
CROWD = (50,)
CROWDS = (13, 13, 12, 12)
"""Tasks of each process that wants the one key."""


def measure_keys(round_: Round[Server]) -> Measured:
    """Every task has a resource of its own, in a partition of its own."""
    seconds = 0.4 if round_.quick else 4.0
    job = round_.job("turns", tasks=TASKS, key="order/{task}", seconds=seconds)
    return {CYCLES: [len(run(round_, [job]).counted()) / seconds]}


def measure_key(crowds: Sequence[int], round_: Round[Server]) -> Measured:
    """All tasks of all processes want the same."""
    seconds = 1.0 if round_.quick else 8.0
    if round_.quick:
        crowds = [2] * len(crowds)
    jobs = [
        round_.job("turns", tasks=tasks, key="order/1", seconds=seconds)
        for tasks in crowds
    ]
    before = round_.server.requests()
    window = run(round_, jobs)
    after = round_.server.requests()
    measured = judged(window, crowds)
    if before is not None and after is not None:
        came = after - before
        measured[CHANGES] = [came.changes / len(window.turns)]
        measured[READS] = [came.reads / len(window.turns)]
    return measured


def measure_layouts(round_: Round[Server]) -> Measured:
    """Ids of one type against types of their own, with either primary key."""
    seconds = 0.3 if round_.quick else 3.0
    measured: Measured = {}
    for layout in KEYSPACES:
        for what, key in (("ids of a type", "order/{task}"), ("types", "o{task}/1")):
            job = round_.job("turns", tasks=TASKS, key=key, seconds=seconds)
            job = replace(job, url=round_.server.url(layout))
            window = run(round_, [job])
            metric = layout_metric(layout, what)
            measured[metric] = [len(window.counted()) / seconds]
    return measured


def layout_metric(layout: str, what: str) -> str:
    """``what``: ``ids of a type`` or ``types``."""
    keys = {"pair": "pair as key", "type": "published key"}
    return f"cycles/s, {keys[layout]}, {TASKS} {what}"


C2: Scenario[Server] = Scenario(
    "C2",
    f"{TASKS} tasks, {TASKS} keys, one process",
    tuple((peer, "asyncio") for peer in (FLOOR, OURS, CALLS)),
    measure_keys,
)
C3: Scenario[Server] = Scenario(
    "C3",
    "50 tasks of one process, one key, nothing to do inside",
    tuple((peer, "asyncio") for peer in (EAGER, NAIVE, OURS, UNFAIR)),
    partial(measure_key, CROWD),
)
C3P: Scenario[Server] = Scenario(
    "C3p",
    "50 tasks of 4 processes, one key, nothing to do inside",
    tuple((peer, "asyncio") for peer in (NAIVE, OURS, UNFAIR)),
    partial(measure_key, CROWDS),
)
C5: Scenario[Server] = Scenario(
    "C5",
    "layouts of the table",
    tuple((peer, "asyncio") for peer in (FLOOR, OURS)),
    measure_layouts,
)
