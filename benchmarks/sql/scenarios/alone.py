"""Q1: nobody else wants it."""

from __future__ import annotations

import statistics

from benchmarks.shared.alone import cycle_times
from benchmarks.shared.scenario import Measured, Round, Scenario
from benchmarks.sql.adapters import MARIADB, OURS, POSTGRESQL, SQLITE
from benchmarks.sql.server import Server

CYCLES = 1500
CYCLE = "cycle p50, µs"


def measure(round_: Round[Server]) -> Measured:
    """The median cycle."""
    took = cycle_times(round_, 50 if round_.quick else CYCLES, "mutex", "order/1")
    return {
        CYCLE: [statistics.median(took)],
        "cycle p95, µs": [statistics.quantiles(took, n=20)[18]],
    }


Q1: Scenario[Server] = Scenario(
    "Q1",
    "one task, acquire and release",
    (*((peer, "asyncio") for peer in (*POSTGRESQL, *MARIADB, *SQLITE)), (OURS, "trio")),
    measure,
)
