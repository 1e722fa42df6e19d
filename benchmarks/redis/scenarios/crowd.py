"""S6: a thousand tasks of one process wait for a lock that another process holds."""

from __future__ import annotations

import time

from benchmarks.redis.adapters import BLPOP, OURS, REDIS_PY, RUEIDIS
from benchmarks.redis.server import Server
from benchmarks.shared import many_tasks
from benchmarks.shared.many_tasks import CONNECTIONS, DRAIN, SERVED, WAITERS
from benchmarks.shared.scenario import Measured, Round, Scenario

REQUESTS = "requests/s"


def measure(round_: Round[Server]) -> Measured:
    """What they cost while they wait, and how long until the last has had it."""

    def watch(seconds: float) -> Measured:
        with round_.server.overheard() as heard:
            begin = time.time()
            time.sleep(seconds)
            end = time.time()
        return {REQUESTS: [heard.between(begin, end) / seconds]}

    return many_tasks.measure(round_, watch, quick=(0.3, 0.5))


S6: Scenario[Server] = Scenario(
    "S6",
    "1,000 tasks of one process wait for 5 s",
    tuple((peer, "asyncio") for peer in (BLPOP, OURS, RUEIDIS, REDIS_PY)),
    measure,
)

__all__ = ["CONNECTIONS", "DRAIN", "REQUESTS", "S6", "SERVED", "WAITERS"]
