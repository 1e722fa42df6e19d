"""A process whose tasks take several locks at once, again and again.

``python -m tests.faults.several URL DIR NAME PLAN``, the plan as JSON (``Plan``),
writes its history to ``DIR/NAME.jsonl``. ``sorted``: by ``locks.multi``; else one by
one in any order, and whoever waits too long gives back what he has.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio

from aiorwlock_remote import Held, Locks, LockTimeout, connect
from aiorwlock_remote.locks.lock import AnyLock
from aiorwlock_remote.testing.history import Attempt, History
from tests.faults.register import Register
from tests.faults.worker import deadline

LOCKS = 8
TYPE = "several"


@dataclass
class Plan:
    """What a worker does. Seconds."""

    tasks: int = 10
    turns: int = 25
    timeout: float = 100.0
    loop: str = "asyncio"
    sorted: bool = True


class Worker:
    """The tasks of one process."""

    def __init__(
        self, locks: Locks, history: History, folder: Path, plan: Plan
    ) -> None:
        self._locks = locks
        self._history = history
        self._plan = plan
        names = [folder / f"register{number}" for number in range(LOCKS)]
        self._registers = [Register(name) for name in names]

    async def task(self) -> None:
        """Take turns."""
        for _ in range(self._plan.turns):
            numbers = random.sample(range(LOCKS), random.randint(1, LOCKS))
            wanted = {number: random.choice("RW") for number in numbers}
            attempts = {
                n: self._history.ask(f"{TYPE}/{n}", "W" if mode == "W" else "R")
                for n, mode in wanted.items()
            }
            try:
                async with AsyncExitStack() as stack:
                    await self._turn(stack, wanted, attempts)
            except LockTimeout:
                for attempt in attempts.values():
                    attempt.refused()
            else:
                for attempt in attempts.values():
                    attempt.released(ok=True)

    async def _turn(
        self,
        stack: AsyncExitStack,
        wanted: dict[int, str],
        attempts: dict[int, Attempt],
    ) -> None:
        locks = [self._lock(number, mode) for number, mode in wanted.items()]
        grants: list[Held] = []
        if self._plan.sorted:
            several = self._locks.multi(*locks, timeout=self._plan.timeout)
            grants += await stack.enter_async_context(several)
        else:
            for lock in locks:
                one = lock.acquire(self._plan.timeout)
                grants.append(await stack.enter_async_context(one))
                await anyio.sleep(0.01)
        for held, (number, attempt) in zip(grants, attempts.items(), strict=True):
            attempt.granted(fence=held.fence, until=deadline(held))
            serial = self._registers[number].access(held.fence)
            attempt.access(step=1, serial=serial, until=deadline(held))
        for held, attempt in zip(grants, attempts.values(), strict=True):
            attempt.releasing(until=deadline(held))

    def _lock(self, number: int, mode: str) -> AnyLock:
        both = self._locks.rwlock(TYPE, number)
        return both.writer if mode == "W" else both.reader


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Run the tasks."""
    with History(folder / f"{name}.jsonl", process=name) as history:
        async with connect(url) as locks:
            worker = Worker(locks, history, folder, plan)
            async with anyio.create_task_group() as group:
                print("ready", flush=True)
                for _ in range(plan.tasks):
                    group.start_soon(worker.task)


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[4]))
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], plan, backend=plan.loop
    )
