"""The other process of a bench: ``python -m aiorwlock_remote.cli.bench_peer``.

After the plan comes one order, ``TakeTurns`` as JSON, answered by the turns that it
took. End of file = end, at once.

Turns at one mutex, taken by two processes, and what passes between them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.cli.worker_process import READY, serve

if TYPE_CHECKING:
    from aiorwlock_remote import Mutex


MIN_TURNS = 3
"""Turns that each takes, however little time there is: so that some change hands."""

Turn = tuple[float, float]
"""Entered, and about to leave; of the clock that all processes of a host share."""


async def take_turns(lock: Mutex, hold: float, seconds: float) -> list[Turn]:
    """Hold it for ``hold`` seconds at a time, and ask again at once.

    The other process has to wait by then: what it is for is seen only if it does.
    """
    turns: list[Turn] = []
    until = time.perf_counter() + seconds
    while len(turns) < MIN_TURNS or time.perf_counter() < until:
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


@final
@dataclass(frozen=True, slots=True)
class PeerPlan:
    """What the partner is for. ``lease`` in seconds."""

    url: str
    resource: tuple[str, str]
    lease: float
    loop: str


@final
@dataclass(frozen=True, slots=True)
class TakeTurns:
    """Take turns, as in ``take_turns``."""

    hold: float
    seconds: float

    def line(self) -> bytes:
        """As an order."""
        return json.dumps(asdict(self)).encode() + b"\n"


async def main(plan: PeerPlan) -> None:
    """Connect, and do as told."""
    async with (
        connect(plan.url, lease=plan.lease) as locks,
        anyio.create_task_group() as group,
    ):
        print(READY, flush=True)
        lock = locks.mutex(*plan.resource)

        async def work(go: TakeTurns) -> None:
            print(json.dumps(await take_turns(lock, go.hold, go.seconds)), flush=True)

        while order := await anyio.to_thread.run_sync(sys.stdin.readline):
            group.start_soon(work, TakeTurns(**json.loads(order)))
        group.cancel_scope.cancel()


if __name__ == "__main__":
    serve()
    fields: dict[str, Any] = json.loads(sys.stdin.readline())
    anyio.run(main, PeerPlan(**fields), backend=fields["loop"])
