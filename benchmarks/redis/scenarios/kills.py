"""S7: the holder is killed; how long after its lease's end is the waiter in."""

from __future__ import annotations

import random
import time

from benchmarks.redis.adapters import OURS, REDIS_PY, REDIS_PY_FAST, SEATS
from benchmarks.redis.server import Server
from benchmarks.shared.scenario import Measured, Round, Scenario

HOLDERS = 8
LEASE = 1.0
LATE = "after the lease's end, ms"


def measure(round_: Round[Server]) -> Measured:
    """Each holder is a process with a key of its own, killed at a random moment.

    When the lease ends is read from the server after the kill: the key's own expiry,
    in whole milliseconds.
    """
    chance = random.Random(round_.seed)
    holders = 2 if round_.quick else HOLDERS
    keys = [f"key-{number}" for number in range(holders)]
    jobs = [round_.job("hold", key=key, lease=LEASE) for key in keys]
    heirs = round_.job("heirs", tasks=holders, lease=LEASE)
    ends: dict[str, float] = {}
    with round_.workers(*jobs) as doomed, round_.workers(heirs) as (waiting,):
        for holder in doomed:
            holder.tell("go")
        for holder in doomed:
            holder.hear("got_in")
        waiting.tell("go")
        waiting.hear("asked")
        for key, holder in zip(keys, doomed, strict=True):
            time.sleep(chance.uniform(0.02, 0.15))
            holder.kill()
            at = round_.server.ends(SEATS[round_.peer] % key)
            if at is not None:  # else its lease was over before
                ends[key] = at
        entered = {}
        for _ in keys:
            said = waiting.hear("key")
            entered[said["key"]] = said["got_in"]
    return {LATE: [1e3 * (entered[key] - at) for key, at in ends.items()]}


S7: Scenario[Server] = Scenario(
    "S7",
    "holders killed, lease of 1 s",
    tuple((peer, "asyncio") for peer in (OURS, REDIS_PY, REDIS_PY_FAST)),
    measure,
)
