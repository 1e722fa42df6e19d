"""A process of the demo: ``python -m aiorwlock_remote.cli.demo.worker``.

After the plan come orders: ``hold`` = at the next write, say so between reading and
writing, and wait there; ``go on``. End of file = finish.

How a worker gets in: a lock, or a lock that is switched off.

What the demo and its workers tell each other, over stdin and stdout.
"""

from __future__ import annotations

import json
import random
import select
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast, final

import anyio
from anyio.lowlevel import checkpoint

from aiorwlock_remote import LockLost, RWLock, connect
from aiorwlock_remote.cli.demo.ledger import Ledger, Page
from aiorwlock_remote.cli.worker_process import READY, serve
from aiorwlock_remote.testing.history import Attempt, History, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from aiorwlock_remote.testing.events import Mode


HOLD, GO_ON = b"hold\n", b"go on\n"


@final
@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is to do. ``url`` None: without a lock. ``lease`` in seconds."""

    name: str
    folder: str
    ledger: str
    url: str | None
    resource: tuple[str, str]
    lease: float
    loop: str


@final
@dataclass(frozen=True, slots=True)
class HoldReport:
    """What a worker says when it holds and waits, as ordered.

    ``holder``: as in the history. ``grant``: as the store shows it.
    """

    holder: str
    grant: str
    fence: int


@final
class WorkerCommands:
    """What the demo says on stdin."""

    def __init__(self) -> None:
        # Unbuffered: select has to see what has not been read.
        self._stdin = cast("BinaryIO", open(0, "rb", buffering=0, closefd=False))  # noqa: SIM115
        self.hold: bool = False

    def line(self) -> bytes:
        """The next line; waits for it, and blocks the whole process."""
        return self._stdin.readline()

    def go_on(self) -> bool:
        """Whether to take another turn."""
        while select.select([self._stdin], [], [], 0)[0]:
            order = self.line()
            if not order:
                return False
            self.hold = order == HOLD
        return True

    def obey(self, holding: HoldReport) -> None:
        """Say that we hold; wait until told to go on."""
        self.hold = False
        print(json.dumps(asdict(holding)), flush=True)
        self.line()


class Grant(Protocol):
    """What a session needs of a ``Held``."""

    @property
    def fence(self) -> int:
        """Presented with every access."""

    @property
    def holder(self) -> str:
        """Its public name in the store."""

    @property
    def expires_in(self) -> float | None:
        """Seconds it may be believed."""

    def check(self) -> None:
        """LockLost if it is not held any more."""


class LedgerAccess(Protocol):
    """How to get in: a lock, or the lack of one."""

    def enter(self, mode: Mode) -> AbstractAsyncContextManager[Grant]:
        """Wait; hold for as long as the block runs."""


@final
@dataclass(frozen=True, slots=True)
class LockedAccess:
    """A readers-writer lock."""

    lock: RWLock
    name: str

    def enter(self, mode: Mode) -> AbstractAsyncContextManager[Grant]:
        """Wait as long as it takes; LockLost if the grant ends before the block."""
        side = self.lock.writer if mode == "W" else self.lock.reader
        return side.acquire(reason=self.name)


@final
@dataclass(frozen=True, slots=True)
class UnlockedAccess:
    """A lock that is switched off: everybody may enter, all with one fence."""

    expires_in: float | None
    fence: int = 1
    holder: str = ""

    def check(self) -> None:
        """Nothing is ever lost."""

    @asynccontextmanager
    async def enter(self, mode: Mode) -> AsyncIterator[UnlockedAccess]:
        """Do not wait."""
        del mode
        await checkpoint()
        yield self


@asynccontextmanager
async def open_door(plan: WorkerPlan) -> AsyncIterator[LedgerAccess]:
    """Connect, if there is to be a lock."""
    if plan.url is None:
        yield UnlockedAccess(plan.lease)
        return
    async with connect(plan.url) as locks:
        yield LockedAccess(locks.rwlock(*plan.resource, lease=plan.lease), plan.name)


WRITES = 0.5
PAUSE_RANGE = (0.002, 0.008)


@final
class Worker:
    """Takes turns at one ledger, as a reader or as a writer."""

    def __init__(
        self,
        door: LedgerAccess,
        ledger: Ledger,
        history: History,
        orders: WorkerCommands,
        name: str,
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
                self._orders.obey(HoldReport(attempt.holder, held.holder, held.fence))
            else:
                await anyio.sleep(random.uniform(*PAUSE_RANGE))
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
            await anyio.sleep(random.uniform(*PAUSE_RANGE))
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


async def main(plan: WorkerPlan, orders: WorkerCommands) -> None:
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
    told: WorkerCommands = WorkerCommands()
    fields: dict[str, Any] = json.loads(told.line())
    anyio.run(main, WorkerPlan(**fields), told, backend=fields["loop"])
