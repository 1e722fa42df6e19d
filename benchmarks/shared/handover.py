"""From one process to another, which has been waiting for 50 to 450 ms.

The other asks when the one is in, and the one holds on for a random time: a lock that
polls gets no chance to be in step.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks.shared.scenario import Measured, Round

HAND_OVERS = 60
WARM_UP = 2
TOOK = "hand-over, ms"


def measure(round_: Round[Any]) -> Measured:
    """From just before the release is called until the other has the lock."""
    chance = random.Random(round_.seed)
    hand_overs = 5 if round_.quick else HAND_OVERS
    shortest, longest = (0.01, 0.05) if round_.quick else (0.05, 0.45)
    took = []
    with round_.workers(round_.job("baton"), round_.job("baton")) as pair:
        holder, other = pair
        holder.tell(chance.uniform(shortest, longest))
        holder.hear("got_in")
        for _ in range(WARM_UP + hand_overs):
            other.tell(chance.uniform(shortest, longest))
            left = holder.hear("left")["left"]
            got_in = other.hear("got_in")["got_in"]
            assert left <= got_in, "two processes held the lock at the same time"
            took.append(1e3 * (got_in - left))
            holder, other = other, holder
        holder.hear("left")
        for worker in (holder, other):
            worker.tell("end")
    return {TOOK: took[WARM_UP:]}
