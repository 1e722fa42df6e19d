"""Stands in for your own database: one row an order, kept by the examples' web apps.

It does what every store behind a lock service should do: it remembers the highest
fence it has seen, on reads too, and refuses what comes with a lower one. So a handler
that was paused past its lease cannot spoil what its successor wrote.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from anyio import to_thread


class StaleFence(Exception):
    """Somebody with a newer grant was here already."""


class Ledger:
    """What was paid for each order so far, in an SQLite file."""

    def __init__(self, path: Path) -> None:
        """Makes the file if it is not there."""
        self._path = path
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS orders "
                "(id INTEGER PRIMARY KEY, paid INTEGER, fence INTEGER)"
            )

    async def paid(self, order: int, fence: int) -> int:
        """Read under a grant."""
        return await to_thread.run_sync(self._touch, order, 0, None, fence)

    async def set_paid(self, order: int, paid: int, fence: int) -> None:
        """Write under a grant."""
        await to_thread.run_sync(self._touch, order, paid, paid, fence)

    def _touch(self, order: int, first: int, paid: int | None, fence: int) -> int:
        # One statement: the fence is compared and raised where the data is.
        sql = (
            "INSERT INTO orders VALUES (:order, :first, :fence)"
            " ON CONFLICT (id) DO UPDATE"
            " SET paid = coalesce(:paid, paid), fence = :fence WHERE :fence >= fence"
            " RETURNING paid"
        )
        values = {"order": order, "first": first, "paid": paid, "fence": fence}
        with closing(self._open()) as db:
            row = db.execute(sql, values).fetchone()
        if row is None:
            raise StaleFence(f"order {order}: fence {fence} is too old")
        return int(row[0])

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10, isolation_level=None)
