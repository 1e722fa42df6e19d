"""S3: from one process to another, which waits."""

from __future__ import annotations

from benchmarks.redis.adapters import BLPOP, OURS, REDIS_PY, REDIS_PY_FAST, RUEIDIS
from benchmarks.redis.server import Server
from benchmarks.shared.handover import measure
from benchmarks.shared.scenario import Scenario

S3: Scenario[Server] = Scenario(
    "S3",
    "hand-over between processes, held for 50 to 450 ms",
    tuple(
        (peer, "asyncio") for peer in (BLPOP, OURS, RUEIDIS, REDIS_PY, REDIS_PY_FAST)
    ),
    measure,
)
