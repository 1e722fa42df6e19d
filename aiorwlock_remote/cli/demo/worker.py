"""A process of the demo: ``python -m aiorwlock_remote.cli.demo.worker``.

After the plan come orders: ``hold`` = at the next write, say so between reading and
writing, and wait there; ``go on``. End of file = finish.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import anyio

from aiorwlock_remote import LockLost
from aiorwlock_remote.cli.demo.doors import Door, Grant, open_door
from aiorwlock_remote.cli.demo.ledger import Ledger, Page
from aiorwlock_remote.cli.demo.orders import Holding, Orders, Plan
from aiorwlock_remote.cli.worker_process import READY, serve
from aiorwlock_remote.testing.history import Attempt, History, now

if TYPE_CHECKING:
    from aiorwlock_remote.testing.events import Mode

WRITES = 0.5
PAUSE = (0.002, 0.008)


@final
class Worker:
    """Takes turns at one ledger, as a reader or as a writer."""

    def __init__(
        self, door: Door, ledger: Ledger, history: History, orders: Orders, name: str
    ) -> None:
        self._door = door
        self._ledger = ledger
        self._history = history
        self._orders = orders
        self._name = name

    async def run(self) -> None:
        """Until told to finish."""
        while self._orders.go_on():
            await self._turn("W" if random.random() < WRITES else "R")

    async def _turn(self, mode: Mode) -> None:
        attempt = self._history.ask(self._name, mode)
        try:
            async with self._door.enter(mode) as held:
                attempt.granted(fence=held.fence, until=_deadline(held))
                if mode == "W":
                    await self._transfer(attempt, held)
                else:
                    await self._audit(attempt, held)
                attempt.releasing(until=_deadline(held))
            attempt.released(ok=True)
        except LockLost as lost:
            attempt.lost(lost.reason)

    async def _transfer(self, attempt: Attempt, held: Grant) -> None:
        """Read, compute, write: whoever gets in between makes money come or go."""
        page = self._ledger.read(held.fence, attempt.holder, "W")
        _note(attempt, held, 1, page)
        if page is not None:
            changed = _moved(page.balances)
            if self._orders.hold:
                self._orders.obey(Holding(attempt.holder, held.holder, held.fence))
            else:
                await anyio.sleep(random.uniform(*PAUSE))
            # No held.check() here: a pause may come after any check, so the ledger
            # has to refuse what comes too late.
            page = self._ledger.write(held.fence, attempt.holder, changed)
            _note(attempt, held, 2, page)
        held.check()

    async def _audit(self, attempt: Attempt, held: Grant) -> None:
        """Read twice; the book tells whether both times it was the same."""
        for step in (1, 2):
            page = self._ledger.read(held.fence, attempt.holder, "R")
            _note(attempt, held, step, page)
            if page is None:
                break
            await anyio.sleep(random.uniform(*PAUSE))
        held.check()


def _note(attempt: Attempt, held: Grant, step: int, page: Page | None) -> None:
    serial = None if page is None else page.serial
    attempt.access(step=step, serial=serial, until=_deadline(held))


def _deadline(held: Grant) -> int | None:
    at = now()  # first: what is too early accuses nobody
    left = held.expires_in
    return None if left is None else at + int(left * 1e9)


def _moved(balances: list[int]) -> dict[int, int]:
    """Some money moved from one account to another: the new balances of the two."""
    source, target = random.sample(range(len(balances)), 2)
    amount = random.randint(0, balances[source])
    return {source: balances[source] - amount, target: balances[target] + amount}


async def main(plan: Plan, orders: Orders) -> None:
    """Connect, if there is to be a lock, and work."""
    folder = Path(plan.folder)
    with (
        Ledger(folder / "ledger.db", plan.ledger) as ledger,
        History(folder / f"{plan.name}.jsonl", process=plan.name) as history,
    ):
        async with open_door(plan) as door:
            print(READY, flush=True)
            await Worker(door, ledger, history, orders, plan.ledger).run()


if __name__ == "__main__":
    serve()
    told: Orders = Orders()
    fields: dict[str, Any] = json.loads(told.line())
    anyio.run(main, Plan(**fields), told, backend=fields["loop"])
