"""Turns at one mutex, taken by two processes, and what passes between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from aiorwlock_remote import Mutex

LEAST = 3
"""Turns that each takes, however little time there is: so that some change hands."""

Turn = tuple[float, float]
"""Entered, and about to leave; of the clock that all processes of a host share."""


async def take_turns(lock: Mutex, hold: float, seconds: float) -> list[Turn]:
    """Hold it for ``hold`` seconds at a time, and ask again at once.

    The other process has to wait by then: what it is for is seen only if it does.
    """
    turns: list[Turn] = []
    until = time.perf_counter() + seconds
    while len(turns) < LEAST or time.perf_counter() < until:
        async with lock:
            entered = time.perf_counter()
            await anyio.sleep(hold)
            turns.append((entered, time.perf_counter()))
    return turns


def handed_over(ours: Sequence[Turn], theirs: Sequence[Turn]) -> list[float]:
    """Seconds from the leaving of one process to the entering of the other."""
    all_turns = sorted(
        [(turn, True) for turn in ours] + [(turn, False) for turn in theirs]
    )
    return [
        entered - left
        for ((_, left), one), ((entered, _), other) in pairwise(all_turns)
        if one != other
    ]
