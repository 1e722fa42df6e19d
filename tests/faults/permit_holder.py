"""Tasks that take permits of one semaphore: ``python -m tests.faults.permit_holder``.

Arguments and history are those of ``tests.faults.worker``. SIGTERM lets it leave.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from aiorwlock_remote import LockLost, Semaphore, connect
from aiorwlock_remote.testing.history import History
from tests.faults.worker import deadline


@dataclass
class Plan:
    """What the tasks do. Seconds."""

    limit: int = 3
    tasks: int = 4
    lease: float = 1.0
    body: float = 0.02
    loop: str = "asyncio"


async def take_turns(semaphore: Semaphore, history: History, plan: Plan) -> None:
    """Take a permit and give it back, again and again."""
    while True:
        attempt = history.ask("shared/1", "W")
        try:
            async with semaphore as held:
                attempt.granted(fence=held.fence, until=deadline(held))
                try:
                    await anyio.sleep(random.uniform(0.0, plan.body))
                finally:
                    attempt.releasing(until=deadline(held))
        except LockLost as exc:
            attempt.lost(exc.reason)


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Take turns until SIGTERM."""
    with History(folder / f"{name}.jsonl", process=name) as history:
        async with (
            connect(url, lease=plan.lease) as locks,
            anyio.create_task_group() as group,
        ):
            semaphore = locks.semaphore("shared", 1, limit=plan.limit)
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                for _ in range(plan.tasks):
                    group.start_soon(take_turns, semaphore, history, plan)
                print("ready", flush=True)
                async for _ in signals:
                    group.cancel_scope.cancel()
                    break


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[4]))
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], plan, backend=plan.loop
    )
