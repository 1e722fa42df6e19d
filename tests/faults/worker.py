"""A process of the fault tests: tasks that read and write one resource under a lock.

``python -m tests.faults.worker URL DIR NAME PLAN``, the plan as JSON (``Plan``). Writes
its history to ``DIR/NAME.jsonl``. With ``turns`` it ends after so many grants a task,
with ``seconds`` after that time; ``writes`` is the share of writers. One that is
``hardy`` goes on when the store was away, also for long. While there is a file
``DIR/halt`` nobody asks, and who has made the first of his two accesses stays where he
is. The resource of those that are not ``fenced`` refuses nobody. ``pair``: a lock on a
pair of keys (S3). ``locks``: the number of what is locked; what is used is always the
same. ``new``: the URL of a second store, in which the lock is held as well; ``fence``:
whose fences it then has.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import anyio

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    RWLock,
    connect,
)
from aiorwlock_remote.recipes import FenceSource, MovingHeld, MovingLock
from aiorwlock_remote.testing.history import Attempt, History, now
from tests.faults.register import Register

AWAY = (AcquireUncertain, BackendUnavailable)


@dataclass
class Plan:
    """What a worker does. Seconds."""

    tasks: int = 8
    turns: int | None = None
    seconds: float = 3600.0
    writes: float = 0.4
    lease: float = 1.0
    body: float = 0.002
    loop: str = "asyncio"
    hardy: bool = False
    fenced: bool = True
    pair: bool = False
    locks: int = 1
    new: str = ""
    fence: FenceSource = "old"


@dataclass
class MovingRWLock:
    """The two sides of a readers-writer lock of two stores."""

    reader: MovingLock
    writer: MovingLock


def deadline(held: Held | MovingHeld) -> int | None:
    """The local deadline in nanoseconds of ``history.now()``."""
    at = now()  # first: a pause in between must not make it later
    left = held.expires_in
    return None if left is None else at + int(left * 1e9)


class Worker:
    """The tasks of one process."""

    def __init__(
        self, stores: list[Locks], history: History, folder: Path, plan: Plan
    ) -> None:
        self._lock = lock_of(stores, plan)
        self._history = history
        self._register = Register(folder / "register")
        self._halt = folder / "halt"
        self._plan = plan

    def close(self) -> None:
        """Close the register."""
        self._register.close()

    async def task(self) -> None:
        """Take turns."""
        end = time.monotonic() + self._plan.seconds
        turns = 0
        while time.monotonic() < end and turns != self._plan.turns:
            turns += 1
            await self._halted()
            await self._turn()

    async def _turn(self) -> None:
        writes = random.random() < self._plan.writes
        side = self._lock.writer if writes else self._lock.reader
        attempt = self._history.ask("shared/1", "W" if writes else "R")
        try:
            held = await side.acquire(timeout=60)
        except LockTimeout:
            attempt.refused()
            if not self._plan.hardy:
                raise
            return
        except AWAY:
            attempt.unknown()
            if not self._plan.hardy:
                raise
            return
        attempt.granted(fence=held.fence, until=deadline(held))
        try:
            await self._session(attempt, held)
        finally:
            attempt.releasing(until=deadline(held))
            try:
                attempt.released(ok=await held.release())
            except LockLost as exc:
                attempt.lost(exc.reason)
            except BackendUnavailable:
                attempt.released(ok=None)
                if not self._plan.hardy:
                    raise

    async def _session(self, attempt: Attempt, held: Held | MovingHeld) -> None:
        for step in (1, 2):
            serial = self._register.access(held.fence if self._plan.fenced else 0)
            attempt.access(step=step, serial=serial, until=deadline(held))
            if serial is None:
                return
            await anyio.sleep(random.uniform(0, self._plan.body))
            if step == 1:
                await self._halted()

    async def _halted(self) -> None:
        while self._halt.exists():  # noqa: ASYNC110 - other processes tell by a file
            await anyio.sleep(0.01)


def lock_of(stores: list[Locks], plan: Plan) -> RWLock | MovingRWLock:
    """The lock of the plan in one store or in two."""
    made = [
        (locks.set_rwlock if plan.pair else locks.rwlock)(
            "shared", plan.locks, lease=plan.lease
        )
        for locks in stores
    ]
    if len(made) == 1:
        return made[0]
    old, new = made
    return MovingRWLock(
        MovingLock(old.reader, new.reader, fence=plan.fence),
        MovingLock(old.writer, new.writer, fence=plan.fence),
    )


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Run the tasks."""
    with History(folder / f"{name}.jsonl", process=name) as history:
        async with AsyncExitStack() as stack:
            urls = filter(None, (url, plan.new))
            stores = [await stack.enter_async_context(connect(u)) for u in urls]
            with closing(Worker(stores, history, folder, plan)) as worker:
                async with anyio.create_task_group() as group:
                    print("ready", flush=True)
                    for _ in range(plan.tasks):
                        group.start_soon(worker.task)


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[4]))
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], plan, backend=plan.loop
    )
