"""C6: from one process to another, which waits."""

from __future__ import annotations

from benchmarks.cassandra.adapters import NAIVE, OURS
from benchmarks.cassandra.server import Server
from benchmarks.shared.handover import measure
from benchmarks.shared.scenario import Scenario

C6: Scenario[Server] = Scenario(
    "C6",
    "hand-over between processes, held for 50 to 450 ms",
    tuple((peer, "asyncio") for peer in (NAIVE, OURS)),
    measure,
)
