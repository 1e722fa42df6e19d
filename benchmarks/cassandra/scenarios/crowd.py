"""C4: a thousand tasks of one process wait for a lock that another process holds."""

from __future__ import annotations

import time

from benchmarks.cassandra.adapters import OURS
from benchmarks.cassandra.server import Server
from benchmarks.shared import many_tasks
from benchmarks.shared.many_tasks import CONNECTIONS, DRAIN, SERVED, WAITERS
from benchmarks.shared.scenario import Measured, Round, Scenario

CHANGES = "transactions/s"
READS = "reads/s"


def measure(round_: Round[Server]) -> Measured:
    """What they cost while they wait, and how long until the last has had it."""

    def watch(seconds: float) -> Measured:
        first, began = round_.server.requests(), time.monotonic()
        time.sleep(seconds)
        last, took = round_.server.requests(), time.monotonic() - began
        if first is None or last is None:
            return {}
        came = last - first
        return {CHANGES: [came.changes / took], READS: [came.reads / took]}

    return many_tasks.measure(round_, watch)


C4: Scenario[Server] = Scenario(
    "C4",
    "1,000 tasks of one process wait for 5 s",
    ((OURS, "asyncio"),),
    measure,
)

__all__ = ["C4", "CHANGES", "CONNECTIONS", "DRAIN", "READS", "SERVED", "WAITERS"]
