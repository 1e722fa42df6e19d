"""C1: nobody else wants it."""

from __future__ import annotations

import statistics

from benchmarks.cassandra.adapters import CALLS, FLOOR, FLOOR_READ, OURS
from benchmarks.cassandra.server import Server
from benchmarks.shared.alone import cycle_times
from benchmarks.shared.scenario import Measured, Round, Scenario

CYCLES = 600
CYCLE = "cycle p50, ms"
BOUND = "cycle p50, the client on one core, ms"
"""As a program has it that is bound to a core: the driver's threads share it."""
CHANGES = "transactions a cycle"
READS = "reads a cycle"


def measure(round_: Round[Server]) -> Measured:
    """The median cycle of some hundreds, and what arrived at the server."""
    cycles = 40 if round_.quick else CYCLES
    before = round_.server.requests()
    took = _millis(round_, cycles, one_core=False)
    after = round_.server.requests()
    measured: Measured = {
        CYCLE: [statistics.median(took)],
        "cycle p95, ms": [statistics.quantiles(took, n=20)[18]],
        BOUND: [statistics.median(_millis(round_, cycles, one_core=True))],
    }
    if before is not None and after is not None:
        came, all_ = after - before, cycles + cycles // 10
        measured[CHANGES] = [came.changes / all_]
        measured[READS] = [came.reads / all_]
    return measured


def _millis(round_: Round[Server], cycles: int, *, one_core: bool) -> list[float]:
    took = cycle_times(round_, cycles, "mutex", "order/1", one_core=one_core)
    return [micros / 1e3 for micros in took]


C1: Scenario[Server] = Scenario(
    "C1",
    "one task, acquire and release",
    (
        *((peer, "asyncio") for peer in (FLOOR, FLOOR_READ, OURS, CALLS)),
        (OURS, "trio"),
    ),
    measure,
)
