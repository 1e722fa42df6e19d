"""Stands in for your own database: one row an order, kept by the examples' web apps.

It does what every store behind a lock service should do: it remembers the highest
fence it has seen, on reads too, and refuses what comes with a lower one. So a handler
that was paused past its lease cannot spoil what its successor wrote.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from anyio import to_thread

from aiorwlock_remote.fencing.sql import Cursor, FencedTable

ORDERS = FencedTable("orders")


class Ledger:
    """What was paid for each order so far, in an SQLite file."""

    def __init__(self, path: Path) -> None:
        """Makes the file if it is not there."""
        self._path = path
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY,"
                " paid INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0)"
            )

    async def paid(self, order: int, fence: int) -> int:
        """Read under a grant; ``StaleFence`` if a newer one was here already."""

        def read(cursor: Cursor) -> int:
            (paid,) = ORDERS.read(cursor, order, fence, ["paid"])
            return int(paid)

        return await to_thread.run_sync(self._run, order, read)

    async def set_paid(self, order: int, paid: int, fence: int) -> None:
        """Write under a grant; ``StaleFence`` if a newer one was here already."""

        def write(cursor: Cursor) -> int:
            ORDERS.write(cursor, order, fence, {"paid": paid})
            return paid

        await to_thread.run_sync(self._run, order, write)

    def _run(self, order: int, work: Callable[[Cursor], int]) -> int:
        """In one transaction: the fence is compared and raised where the data is."""
        with closing(self._open()) as db, db:
            cursor = db.cursor()
            cursor.execute("INSERT OR IGNORE INTO orders (id) VALUES (?)", (order,))
            return work(cursor)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)
