"""A thousand tasks of one process wait for a lock that another process holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from benchmarks.shared.scenario import AnyServer, Measured, Round

WAITERS = 1000
SERVED = "served of 1,000"
CONNECTIONS = "connections"
DRAIN = "drain, s"
QUICK = 20
SETTLE = 2.0
"""Seconds until all have asked and are told to wait."""
WATCHED = 5.0

S = TypeVar("S", bound=AnyServer)


def measure(
    round_: Round[S],
    watch: Callable[[float], Measured],
    quick: tuple[float, float] = (0.5, 2.0),
) -> Measured:
    """What they cost while they wait, and how long until the last has had it.

    ``watch``: what arrives at the server in so many seconds. ``quick``: the seconds
    to settle and to watch of a quick round.
    """
    waiters, settle, watched = WAITERS, SETTLE, WATCHED
    if round_.quick:
        waiters, (settle, watched) = QUICK, quick
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
            measured = watch(watched)
            crowd.tell("now")
            holder.tell("now")
            left = holder.hear("left")["left"]
            result = crowd.hear("served")
    assert result["served"] + sum(result["errors"].values()) <= waiters
    return measured | {
        CONNECTIONS: [connections],
        SERVED: [WAITERS * result["served"] / waiters],
        DRAIN: [result["last"] - left],
    }
