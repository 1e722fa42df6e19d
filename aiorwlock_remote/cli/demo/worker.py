"""A worker of the demo: ``python -m aiorwlock_remote.cli.demo.worker``.

A worker reads from stdin a ``WorkerPlan`` and then orders. ``hold``: in the next write,
report that the lock is held and pause, after reading and before writing. ``go on``: end
that pause. The end of stdin is the order to finish.

The locks protect ledgers: lists of account balances in an SQLite file. Each access is
one transaction that presents a fence. A fence smaller than the highest seen is refused,
on reads as well. An accepted access gets the next serial number of its ledger and a row
in the table ``book``, with all balances as that access saw or left them. So the file
itself shows afterwards whether money was lost, or a reader saw balances change.
"""

from __future__ import annotations

import json
import random
import select
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

import anyio
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, LockLost, connect
from aiorwlock_remote.cli.worker_process import READY, end_with_command
from aiorwlock_remote.testing.history import Attempt, History, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager

    from aiorwlock_remote.testing.history import EventMode


# ------------------------------------------------------------------------ the ledger

ACCOUNTS = 8
DEPOSIT = 100
TOTAL = ACCOUNTS * DEPOSIT

_NOTHING: Mapping[int, int] = {}
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE ledgers (name PRIMARY KEY, fence, serial, balances);
CREATE TABLE book (
    ledger, serial, holder, mode, balances, PRIMARY KEY (ledger, serial)
);
"""


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """An access to a ledger: its serial number, and all balances as it left them."""

    serial: int
    balances: list[int]


@dataclass(frozen=True, slots=True)
class BookEntry:
    """A recorded access to a ledger: the grant, its mode, and all balances then."""

    ledger: str
    holder: str
    mode: str
    balances: tuple[int, ...]


def create_ledgers(path: Path, names: Iterable[str]) -> None:
    """Create an SQLite file with a list of accounts, all ``DEPOSIT``, for each name."""
    with closing(_open(path)) as db:
        db.executescript(_SCHEMA)
        for name in names:
            row = (name, 0, 0, json.dumps([DEPOSIT] * ACCOUNTS))
            db.execute("INSERT INTO ledgers VALUES (?, ?, ?, ?)", row)


class Ledger:
    """A list of account balances in an SQLite file, which refuses old fences."""

    def __init__(self, path: Path, name: str) -> None:
        self._db = _open(path)
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def access(
        self, fence: int, holder: str, mode: str, changed: Mapping[int, int] = _NOTHING
    ) -> LedgerPage | None:
        """Set the balances in ``changed``, if any, and return all balances.

        Return None, and change nothing, if an access with a higher fence came before.
        ``holder`` (name of a grant) and ``mode`` (R or W) are recorded with the access;
        ``changed``: new balances by account number.
        """
        # The block commits, or rolls back. IMMEDIATE takes the write lock before the
        # read, so that no access of another process comes between the two.
        with self._db:
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
    """Return each access that a worker of the demo wrote to the file ``path``.

    Sorted by ledger (the accounts that one lock protects), then by serial number.
    """
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
    # The ledgers need not survive a power cut, and a sync would slow the demo down.
    db.execute("PRAGMA synchronous = OFF")
    return db


# --------------------------------------------------------------- plan and orders

HOLD, GO_ON = b"hold\n", b"go on\n"
FENCE_MEMORY = 1.0
"""Seconds for which a store keeps an unused lock of the demo, whose name is new."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker shall do; ``name``: the worker in messages and events.

    ``folder``: contains the data and event files; ``ledger``: which list of balances to
    use; ``url``: the store with the locks, None: use no locks; ``resource``: type and
    id of the ledger's lock; ``lease``: seconds; ``loop``: ``asyncio`` or ``trio``.
    """

    name: str
    folder: str
    ledger: str
    url: str | None
    resource: tuple[str, str]
    lease: float
    loop: str


@dataclass(frozen=True, slots=True)
class HoldReport:
    """A worker's report that it has paused while it holds the lock, as ordered.

    ``holder``: its name for this grant in recorded events; ``grant``: the public holder
    id in the store.
    """

    holder: str
    grant: str
    fence: int


class WorkerOrders:
    """Reads orders from stdin; ``hold``: True if the next write shall pause."""

    def __init__(self) -> None:
        # Unbuffered: select() sees only what no buffer has read yet.
        self._stdin = cast("BinaryIO", open(0, "rb", buffering=0, closefd=False))  # noqa: SIM115
        self.hold: bool = False

    def line(self) -> bytes:
        return self._stdin.readline()

    def take_new(self) -> bool:
        """Read the orders that have arrived, without waiting; False at stdin's end."""
        while select.select([self._stdin], [], [], 0)[0]:
            order = self.line()
            if not order:
                return False
            self.hold = order == HOLD
        return True

    def report(self, holding: HoldReport) -> None:
        """Print that the lock is held; block until the next order arrives on stdin."""
        self.hold = False
        print(json.dumps(asdict(holding)), flush=True)
        self.line()


# ------------------------------------------------------------------------ the worker


@dataclass(frozen=True, slots=True)
class Unlocked:
    """Replaces ``Held`` if the demo runs without locks: never lost, always fence 1."""

    expires_in: float | None
    fence: int = 1
    holder: str = ""

    def check(self) -> None:
        pass


Enter = Callable[["EventMode"], "AbstractAsyncContextManager[Held | Unlocked]"]
"""``enter(mode)``: waits for the lock, and holds it inside of the ``async with``."""


@asynccontextmanager
async def open_access(plan: WorkerPlan) -> AsyncIterator[Enter]:
    """Connect to the plan's store, if any; yield a function that acquires its lock."""
    if plan.url is None:
        unlocked = Unlocked(plan.lease)

        @asynccontextmanager
        async def enter(_: EventMode) -> AsyncIterator[Unlocked]:
            await checkpoint()
            yield unlocked

        yield enter
        return
    async with connect(plan.url, fence_memory=FENCE_MEMORY) as locks:
        lock = locks.rwlock(*plan.resource, lease=plan.lease)
        yield lambda mode: (lock.writer if mode == "W" else lock.reader).acquire(
            reason=plan.name
        )


WRITE_SHARE = 0.5
PAUSE_RANGE = (0.002, 0.008)
"""Seconds between the two accesses of a turn, at least and at most."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Reads or changes one ledger under its lock, repeatedly and at random.

    ``enter`` acquires the lock of ``ledger``, whose name in the events that ``history``
    records is ``name``; ``orders``: what the demo wants.
    """

    enter: Enter
    ledger: Ledger
    history: History
    orders: WorkerOrders
    name: str

    async def run(self) -> None:
        while self.orders.take_new():
            await self._turn("W" if random.random() < WRITE_SHARE else "R")

    async def _turn(self, mode: EventMode) -> None:
        attempt = self.history.ask(self.name, mode)
        try:
            async with self.enter(mode) as held:
                attempt.granted(fence=held.fence, until=_deadline(held))
                if mode == "W":
                    await self._transfer(attempt, held)
                else:
                    await self._audit(attempt, held)
                attempt.releasing(until=_deadline(held))
            attempt.released(ok=True)
        except LockLost as lost:
            attempt.lost(lost.reason)

    async def _transfer(self, attempt: Attempt, held: Held | Unlocked) -> None:
        # A write of another process between our read and our write would make money
        # come or go.
        page = self.ledger.access(held.fence, attempt.holder, "W")
        _note(attempt, held, 1, page)
        if page is not None:
            changed = _moved(page.balances)
            if self.orders.hold:
                self.orders.report(HoldReport(attempt.holder, held.holder, held.fence))
            else:
                await anyio.sleep(random.uniform(*PAUSE_RANGE))
            # There is no held.check() here: the process may be stopped after any check,
            # so the ledger has to refuse what comes too late.
            page = self.ledger.access(held.fence, attempt.holder, "W", changed)
            _note(attempt, held, 2, page)
        held.check()

    async def _audit(self, attempt: Attempt, held: Held | Unlocked) -> None:
        # Reads twice: the book shows whether the balances were the same both times.
        for step in (1, 2):
            page = self.ledger.access(held.fence, attempt.holder, "R")
            _note(attempt, held, step, page)
            if page is None:
                break
            await anyio.sleep(random.uniform(*PAUSE_RANGE))
        held.check()


def _note(
    attempt: Attempt, held: Held | Unlocked, step: int, page: LedgerPage | None
) -> None:
    serial = None if page is None else page.serial
    attempt.access(step=step, serial=serial, until=_deadline(held))


def _deadline(held: Held | Unlocked) -> int | None:
    # The clock is read first: a deadline that is too early accuses no holder.
    at = now()
    left = held.expires_in
    return None if left is None else at + int(left * 1e9)


def _moved(balances: list[int]) -> dict[int, int]:
    source, target = random.sample(range(len(balances)), 2)
    amount = random.randint(0, balances[source])
    return {source: balances[source] - amount, target: balances[target] + amount}


async def main(plan: WorkerPlan, orders: WorkerOrders) -> None:
    """Read and change the plan's ledger under its lock until the order to finish."""
    folder = Path(plan.folder)
    with (
        Ledger(folder / "ledger.db", plan.ledger) as ledger,
        History(folder / f"{plan.name}.jsonl", process=plan.name) as history,
    ):
        async with open_access(plan) as enter:
            print(READY, flush=True)
            await Worker(enter, ledger, history, orders, plan.ledger).run()


if __name__ == "__main__":
    end_with_command()
    commands: WorkerOrders = WorkerOrders()
    fields: dict[str, Any] = json.loads(commands.line())
    anyio.run(main, WorkerPlan(**fields), commands, backend=fields["loop"])
