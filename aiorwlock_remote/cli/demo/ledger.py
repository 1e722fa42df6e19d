"""The ledgers of the demo: what the locks are to protect, in an SQLite file.

Each access is one transaction that presents a fence. One smaller than the highest seen
is refused, on reads as well; an accepted one gets the next serial number of its ledger
and a line in the book, with all balances as that access saw or left them. So the file
itself tells afterwards whether money was lost or a reader saw a torn total.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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
class Page:
    """An access that was accepted: its serial number, the balances it saw or left."""

    serial: int
    balances: list[int]


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the book."""

    ledger: str
    holder: str
    mode: str
    balances: tuple[int, ...]


def create(path: Path, names: Iterable[str]) -> None:
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

    def read(self, fence: int, holder: str, mode: str) -> Page | None:
        """All balances; None: refused, the fence is an old one."""
        return self._access(fence, holder, mode, {})

    def write(self, fence: int, holder: str, changed: Mapping[int, int]) -> Page | None:
        """Replace the balances of some accounts; None: refused, as in ``read``."""
        return self._access(fence, holder, "W", changed)

    def _access(
        self, fence: int, holder: str, mode: str, changed: Mapping[int, int]
    ) -> Page | None:
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
            page = Page(serial + 1, balances)
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


def book(path: Path) -> list[Entry]:
    """All lines of all ledgers, each ledger's in the order of its serial numbers."""
    with closing(_open(path)) as db:
        rows = db.execute(
            "SELECT ledger, holder, mode, balances FROM book ORDER BY ledger, serial"
        )
        return [
            Entry(ledger, holder, mode, tuple(json.loads(balances)))
            for ledger, holder, mode, balances in rows
        ]


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")  # it need not survive a power cut
    return db
