"""A process of the demo: ``python -m aiorwlock_remote.cli.demo.worker``.

After the plan come orders: ``hold`` = at the next write, say so between reading and
writing, and wait there; ``go on``. End of file = finish.

How a worker gets in: a lock, or a lock that is switched off.

What the demo and its workers tell each other, over stdin and stdout.

The ledgers of the demo: what the locks are to protect, in an SQLite file.

Each access is one transaction that presents a fence. One smaller than the highest seen
is refused, on reads as well; an accepted one gets the next serial number of its ledger
and a line in the book, with all balances as that access saw or left them. So the file
itself tells afterwards whether money was lost or a reader saw a torn total.
"""

from __future__ import annotations

import json
import random
import select
import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self, cast, final

import anyio
from anyio.lowlevel import checkpoint

from aiorwlock_remote import LockLost, RWLock, connect
from aiorwlock_remote.cli.worker_process import READY, serve
from aiorwlock_remote.testing.history import Attempt, History, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from aiorwlock_remote.testing.history import EventMode


ACCOUNTS = 8
DEPOSIT = 100
TOTAL = ACCOUNTS * DEPOSIT

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE ledgers (name PRIMARY KEY, fence, serial, balances);
CREATE TABLE book (
    ledger, serial, holder, mode, balances, PRIMARY KEY (ledger, serial)
);
"""


@final
@dataclass(frozen=True, slots=True)
class LedgerPage:
    """An access that was accepted: its serial number, the balances it saw or left."""

    serial: int
    balances: list[int]


@final
@dataclass(frozen=True, slots=True)
class BookEntry:
    """A line of the book."""

    ledger: str
    holder: str
    mode: str
    balances: tuple[int, ...]


def create_ledgers(path: Path, names: Iterable[str]) -> None:
    """A file with these ledgers, each account with its deposit."""
    with closing(_open(path)) as db:
        db.executescript(_SCHEMA)
        for name in names:
            row = (name, 0, 0, json.dumps([DEPOSIT] * ACCOUNTS))
            db.execute("INSERT INTO ledgers VALUES (?, ?, ?, ?)", row)


@final
class Ledger:
    """One ledger, as one process uses it. Calls block, for about a millisecond."""

    def __init__(self, path: Path, name: str) -> None:
        self._db = _open(path)
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def read(self, fence: int, holder: str, mode: str) -> LedgerPage | None:
        """All balances; None: refused, the fence is an old one."""
        return self._access(fence, holder, mode, {})

    def write(
        self, fence: int, holder: str, changed: Mapping[int, int]
    ) -> LedgerPage | None:
        """Replace the balances of some accounts; None: refused, as in ``read``."""
        return self._access(fence, holder, "W", changed)

    def _access(
        self, fence: int, holder: str, mode: str, changed: Mapping[int, int]
    ) -> LedgerPage | None:
        with self._db:  # commits, or rolls back
            self._db.execute("BEGIN IMMEDIATE")
            highest, serial, text = self._db.execute(
                "SELECT fence, serial, balances FROM ledgers WHERE name = ?",
                (self._name,),
            ).fetchone()
            if fence < highest:
                return None
            balances: list[int] = json.loads(text)
            for account, balance in changed.items():
                balances[account] = balance
            page = LedgerPage(serial + 1, balances)
            text = json.dumps(balances)
            self._db.execute(
                "UPDATE ledgers SET fence = ?, serial = ?, balances = ? WHERE name = ?",
                (fence, page.serial, text, self._name),
            )
            self._db.execute(
                "INSERT INTO book VALUES (?, ?, ?, ?, ?)",
                (self._name, page.serial, holder, mode, text),
            )
        return page


def read_book(path: Path) -> list[BookEntry]:
    """All lines of all ledgers, each ledger's in the order of its serial numbers."""
    with closing(_open(path)) as db:
        rows = db.execute(
            "SELECT ledger, holder, mode, balances FROM book ORDER BY ledger, serial"
        )
        return [
            BookEntry(ledger, holder, mode, tuple(json.loads(balances)))
            for ledger, holder, mode, balances in rows
        ]


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")  # it need not survive a power cut
    return db


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

    def enter(self, mode: EventMode) -> AbstractAsyncContextManager[Grant]:
        """Wait; hold for as long as the block runs."""


@final
@dataclass(frozen=True, slots=True)
class LockedAccess:
    """A readers-writer lock."""

    lock: RWLock
    name: str

    def enter(self, mode: EventMode) -> AbstractAsyncContextManager[Grant]:
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
    async def enter(self, mode: EventMode) -> AsyncIterator[UnlockedAccess]:
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

    async def _turn(self, mode: EventMode) -> None:
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


def _note(attempt: Attempt, held: Grant, step: int, page: LedgerPage | None) -> None:
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
