"""The second process of a bench: ``python -m aiorwlock_remote.cli.bench_peer``.

It reads lines of JSON from stdin: first the event loop and the arguments of ``main``,
then orders, each the arguments ``hold`` and ``seconds`` of ``take_turns``. To each
order it answers one line: when it got and released the lock. The end of stdin ends it
at once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.cli.worker_process import READY, end_with_command

if TYPE_CHECKING:
    from aiorwlock_remote import Mutex

MIN_TURNS = 3
"""Turns that a process takes at least, so that the lock is handed over at all."""

Turn = tuple[float, float]
"""When the process entered and when it began to leave, on the clock of the host."""


async def take_turns(lock: Mutex, hold: float, seconds: float) -> list[Turn]:
    """Hold a mutex for ``hold`` s, again and again for ``seconds`` s.

    Return for each time when it was granted and when its release began. ``hold`` must
    be so long that the other process is waiting for the mutex when it is released;
    otherwise this process gets the mutex again at once.
    """
    turns: list[Turn] = []
    until = time.perf_counter() + seconds
    while len(turns) < MIN_TURNS or time.perf_counter() < until:
        async with lock:
            entered = time.perf_counter()
            await anyio.sleep(hold)
            turns.append((entered, time.perf_counter()))
    return turns


def hand_over_times(ours: Sequence[Turn], theirs: Sequence[Turn]) -> list[float]:
    """Return the seconds from each release to the next grant in the other process."""
    all_turns = sorted(
        [(turn, True) for turn in ours] + [(turn, False) for turn in theirs]
    )
    return [
        entered - left
        for ((_, left), one), ((entered, _), other) in pairwise(all_turns)
        if one != other
    ]


async def main(url: str, resource: tuple[str, str], lease: float) -> None:
    """Connect to the store at ``url``, and carry out the orders from stdin to its end.

    The orders are to hold the mutex ``resource`` with a lease of ``lease`` seconds.
    """
    async with connect(url, lease=lease) as locks, anyio.create_task_group() as group:
        print(READY, flush=True)
        lock = locks.mutex(*resource)

        async def work(hold: float, seconds: float) -> None:
            print(json.dumps(await take_turns(lock, hold, seconds)), flush=True)

        # Turns are taken in a task of their own, so that the end of the file ends the
        # process in the middle of them, too.
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            order: dict[str, float] = json.loads(line)
            group.start_soon(work, order["hold"], order["seconds"])
        group.cancel_scope.cancel()


if __name__ == "__main__":
    end_with_command()
    plan: dict[str, Any] = json.loads(sys.stdin.readline())
    loop: str = plan.pop("loop")
    anyio.run(partial(main, **plan), backend=loop)
