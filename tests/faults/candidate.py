"""A candidate of a leader election: ``python -m tests.faults.candidate``.

Arguments and history are those of ``tests.faults.worker``. While it leads, it uses the
protected resource every few milliseconds. SIGTERM lets it leave. ``election``: the name
of the election; what is used is always the same.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.testing.history import History
from tests.faults.register import Register
from tests.faults.worker import deadline


@dataclass
class Plan:
    """What a candidate does. Seconds."""

    lease: float = 1.0
    loop: str = "asyncio"
    fenced: bool = True
    election: str = "scheduler"


async def campaign(
    locks: Locks, history: History, register: Register, plan: Plan
) -> None:
    """Lead as often and as long as possible."""

    async def work(held: Held) -> None:
        attempt = history.ask("shared/1", "W")
        attempt.granted(fence=held.fence, until=deadline(held))
        try:
            for step in count(1):
                serial = register.access(held.fence if plan.fenced else 0)
                attempt.access(step=step, serial=serial, until=deadline(held))
                await anyio.sleep(0.01)
        finally:
            if held.lost is None:
                attempt.releasing(until=deadline(held))
                attempt.released(ok=None)
            else:
                attempt.lost(held.lost)

    await locks.leader(plan.election, lease=plan.lease).lead(work)


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Stand by until SIGTERM."""
    with (
        History(folder / f"{name}.jsonl", process=name) as history,
        closing(Register(folder / "register")) as register,
    ):
        async with connect(url) as locks, anyio.create_task_group() as group:
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                group.start_soon(campaign, locks, history, register, plan)
                print("ready", flush=True)
                async for _ in signals:
                    group.cancel_scope.cancel()
                    break


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[4]))
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], plan, backend=plan.loop
    )
