"""Q4: a thousand tasks of one process wait for a lock that another process holds."""

from __future__ import annotations

from benchmarks.shared import many_tasks
from benchmarks.shared.scenario import Measured, Round, Scenario
from benchmarks.sql.adapters import MARIADB_OURS, OURS
from benchmarks.sql.server import Server

STATEMENTS = "statements/s"


def measure(round_: Round[Server]) -> Measured:
    """What they cost while they wait, and how long until the last has had it."""

    def watch(seconds: float) -> Measured:
        return {STATEMENTS: [round_.server.statements(round_.peer, seconds) / seconds]}

    return many_tasks.measure(round_, watch)


Q4: Scenario[Server] = Scenario(
    "Q4",
    "1,000 tasks of one process wait for 5 s",
    tuple((peer, "asyncio") for peer in (OURS, MARIADB_OURS)),
    measure,
)
