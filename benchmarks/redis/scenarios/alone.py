"""S1: nobody else wants it. Client and server share a core, see ``Round.core``."""

from __future__ import annotations

import statistics

from benchmarks.redis.adapters import BLPOP, FLOOR, OURS, REDIS_PY
from benchmarks.redis.server import Server
from benchmarks.shared.alone import cycle_times
from benchmarks.shared.scenario import Measured, Round, Scenario

CYCLES = 4000
CYCLE = "cycle p50, µs"


def measure(round_: Round[Server]) -> Measured:
    """The median cycle of some thousands, and the 95th percentile."""
    cycles = 50 if round_.quick else CYCLES
    with round_.server.pinned(round_.core):
        took = cycle_times(round_, cycles, "mutex", "key")
    return {
        CYCLE: [statistics.median(took)],
        "cycle p95, µs": [statistics.quantiles(took, n=20)[18]],
    }


S1: Scenario[Server] = Scenario(
    "S1",
    "one task, acquire and release, one core",
    (
        *((peer, "asyncio") for peer in (FLOOR, OURS, REDIS_PY, BLPOP)),
        *((peer, "uvloop") for peer in (FLOOR, OURS, REDIS_PY)),
        (OURS, "trio"),
    ),
    measure,
)
