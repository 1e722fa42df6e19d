"""S6: a thousand tasks of one process wait for a lock that another process holds."""

from __future__ import annotations

import time

from benchmarks.redis.adapters import BLPOP, OURS, REDIS_PY, RUEIDIS
from benchmarks.redis.scenarios.scenario import Measured, Round, Scenario

WAITERS = 1000
SERVED = "served of 1,000"
REQUESTS = "requests/s"
CONNECTIONS = "connections"
DRAIN = "drain, s"


def measure(round_: Round) -> Measured:
    """What they cost while they wait, and how long until the last has had it."""
    waiters, settle, watched = (20, 0.3, 0.5) if round_.quick else (WAITERS, 2.0, 5.0)
    jobs = round_.job("hold"), round_.job("crowd", tasks=waiters)
    server = round_.server
    with round_.workers(jobs[0]) as (holder,):
        holder.tell("go")
        holder.hear("got_in")
        before = server.connections()
        with round_.workers(jobs[1]) as (crowd,):
            crowd.tell("go")
            crowd.hear("asked")
            time.sleep(settle)
            connections = server.connections() - before
            with server.overheard() as heard:
                begin = time.time()
                time.sleep(watched)
                end = time.time()
            crowd.tell("now")
            holder.tell("now")
            left = holder.hear("left")["left"]
            result = crowd.hear("served")
    assert result["served"] + sum(result["errors"].values()) <= waiters
    return {
        REQUESTS: [heard.between(begin, end) / watched],
        CONNECTIONS: [connections],
        SERVED: [WAITERS * result["served"] / waiters],
        DRAIN: [result["last"] - left],
    }


S6 = Scenario(
    "S6",
    "1,000 tasks of one process wait for 5 s",
    tuple((peer, "asyncio") for peer in (BLPOP, OURS, RUEIDIS, REDIS_PY)),
    measure,
)
