"""A client process: ``python -m tests.failovers.client URL DIR NAME PLAN``.

The plan is JSON (``Plan``). All processes use the same names. A *keeper* holds a name
for up to 1.2 leases. A *taker* tries one name after the other, and holds it for a
moment: so a grant that the new leader has forgotten is soon another's. Writes to
``DIR/NAME.jsonl``, and uses the register of each name, which refuses old fences.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from aiorwlock_remote import (
    Held,
    LockLost,
    Locks,
    LockTimeout,
    connect,
)
from aiorwlock_remote.testing.history import Attempt, History
from tests.faults.register import Register
from tests.faults.worker import AWAY, deadline

KIND = "kept"
GLANCE = 0.01
"""Seconds between two looks of a holder at its grant."""
ACCESS = 10
"""Looks between two accesses."""


@dataclass
class Plan:
    """What a process does; ``names`` are numbers with commas. Seconds."""

    names: str
    lease: float
    keepers: int = 8
    takers: int = 3


class Client:
    """The tasks of one process."""

    def __init__(
        self, locks: Locks, history: History, folder: Path, plan: Plan
    ) -> None:
        self._locks = locks
        self._history = history
        self._lease = plan.lease
        self._registers = {
            name: Register(folder / f"register-{name}")
            for name in plan.names.split(",")
        }

    async def keep(self) -> None:
        """Hold one name after the other for long."""
        while True:
            await self._turn(1.0, random.uniform(0.2, 1.2) * self._lease)

    async def take(self) -> None:
        """Try one name after the other, and hold it for a moment."""
        while True:
            await self._turn(0, random.uniform(0, GLANCE))
            await anyio.sleep(random.uniform(0, 5 * GLANCE))

    async def _turn(self, timeout: float, seconds: float) -> None:
        name = random.choice(list(self._registers))
        lock = self._locks.mutex(KIND, name, lease=self._lease)
        attempt = self._history.ask(f"{KIND}/{name}", "W")
        try:
            held = await lock.acquire(timeout)
        except LockTimeout:
            attempt.refused()
        except AWAY:
            attempt.unknown()
            await anyio.sleep(GLANCE)
        else:
            attempt.granted(fence=held.fence, until=deadline(held))
            await self._hold(attempt, held, self._registers[name], seconds)

    async def _hold(
        self, attempt: Attempt, held: Held, register: Register, seconds: float
    ) -> None:
        end = anyio.current_time() + seconds
        looks = 0
        while held.valid and (anyio.current_time() < end or not looks):
            if looks % ACCESS == 0:
                serial = register.access(held.fence)
                until = deadline(held)
                attempt.access(step=looks // ACCESS + 1, serial=serial, until=until)
            looks += 1
            await anyio.sleep(min(seconds, GLANCE))
        if held.lost is not None:
            attempt.lost(held.lost)
            with suppress(LockLost, *AWAY):
                await held.release()
            return
        attempt.releasing(until=deadline(held))
        try:
            attempt.released(ok=await held.release())
        except LockLost as exc:
            attempt.lost(exc.reason)
        except AWAY:
            attempt.released(ok=None)


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Run the tasks until the process is killed."""
    with History(folder / f"{name}.jsonl", process=name) as history:
        async with connect(url) as locks, anyio.create_task_group() as tasks:
            client = Client(locks, history, folder, plan)
            print("ready", flush=True)
            for _ in range(plan.keepers):
                tasks.start_soon(client.keep)
            for _ in range(plan.takers):
                tasks.start_soon(client.take)


if __name__ == "__main__":
    given = Plan(**json.loads(sys.argv[4]))
    logging.disable()  # each loss is written down
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], given)
