"""Q5: from one process to another, which waits."""

from __future__ import annotations

from benchmarks.shared.handover import measure
from benchmarks.shared.scenario import Scenario
from benchmarks.sql.adapters import (
    ADVISORY,
    BATON,
    DLOCK,
    GET_LOCK,
    MARIADB_OURS,
    MARIADB_ROWS,
    OURS,
    ROWS,
    SQLITE_OURS,
)
from benchmarks.sql.server import Server

_PEERS = (
    *(OURS, ROWS, ADVISORY, BATON, DLOCK),
    *(MARIADB_OURS, MARIADB_ROWS, GET_LOCK, SQLITE_OURS),
)
Q5: Scenario[Server] = Scenario(
    "Q5",
    "hand-over between processes, held for 50 to 450 ms",
    tuple((peer, "asyncio") for peer in _PEERS),
    measure,
)
