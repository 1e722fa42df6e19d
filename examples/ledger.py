"""A stand-in for your own database: one row for each order of the web examples.

As every store behind a lock service should, the ledger remembers the highest fence it
has seen, on reads too, and refuses requests with a lower one. So a handler that was
paused past its lease cannot overwrite what its successor wrote.
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
    """What was paid for each order, in an SQLite file that is created if missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY,"
                " paid INTEGER NOT NULL DEFAULT 0, fence BIGINT NOT NULL DEFAULT 0)"
            )

    async def paid(self, order: int, fence: int) -> int:
        """Return the sum; raise ``StaleFence`` if a newer grant was used before."""

        def read(cursor: Cursor) -> int:
            (paid,) = ORDERS.read(cursor, order, fence, ["paid"])
            return int(paid)

        return await to_thread.run_sync(self._run, order, read)

    async def set_paid(self, order: int, paid: int, fence: int) -> None:
        """Set the sum; raise ``StaleFence`` if a newer grant was used before."""

        def write(cursor: Cursor) -> int:
            ORDERS.write(cursor, order, fence, {"paid": paid})
            return paid

        await to_thread.run_sync(self._run, order, write)

    def _run(self, order: int, work: Callable[[Cursor], int]) -> int:
        # One transaction, so that fence and data are compared and changed together.
        with closing(self._open()) as db, db:
            cursor = db.cursor()
            cursor.execute("INSERT OR IGNORE INTO orders (id) VALUES (?)", (order,))
            return work(cursor)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)
