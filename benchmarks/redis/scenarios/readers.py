"""R: what readers that are inside cost those who come, and how fast many come in."""

from __future__ import annotations

import statistics

from benchmarks.redis.adapters import OURS
from benchmarks.redis.server import Server
from benchmarks.shared.alone import cycle_times
from benchmarks.shared.scenario import Measured, Round, Scenario

FEW = "reader's cycle beside 1 reader, µs"
MANY = "reader's cycle beside 10,000 readers, µs"
BATCH = "500 waiting readers in, ms"
LEASE = 600.0
"""Long, so that no renewal comes in between."""


def measure(round_: Round[Server]) -> Measured:
    """A reader's median cycle beside one and beside many; then a batch."""
    many, batch = (100, 20) if round_.quick else (10_000, 500)
    job = round_.job("batch", tasks=batch, section=0.1)
    with round_.workers(job) as (worker,):
        worker.tell("go")
        took = worker.hear("took")["took"]
    return {
        FEW: [_cycle_beside(round_, 1)],
        MANY: [_cycle_beside(round_, many)],
        BATCH: [1e3 * took],
    }


def _cycle_beside(round_: Round[Server], readers: int) -> float:
    round_.server.empty()
    cycles = 50 if round_.quick else 1000
    job = round_.job("hold", mode="reader", tasks=readers, key="shared", lease=LEASE)
    with round_.workers(job) as (holder,):
        holder.tell("go")
        holder.hear("got_in")
        with round_.server.pinned(round_.core):
            took = cycle_times(round_, cycles, "reader", "shared")
        holder.kill()
    return statistics.median(took)


R: Scenario[Server] = Scenario("R", "readers inside", ((OURS, "asyncio"),), measure)
