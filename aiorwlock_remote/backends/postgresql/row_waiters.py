"""Rows of the user's that somebody here waits for, to be seen by who gives them back.

A row lock is three columns: nothing in the row says that anybody waits. So who waits
has a shared advisory lock on two numbers made of the table and the key, on the
connection that listens; and who frees the row (``freed`` in ``row_dialects.py``) tells
a channel, if it cannot have those numbers alone. With nobody waiting nothing is told.

What is given back just before that lock was there is told to nobody: so there is one
ring when it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.postgresql.driver import Connection, PostgresError
from aiorwlock_remote.backends.postgresql.statements import statement

CHANNEL = "rwlock_rows"
"""As ``freed`` has it."""

Row = tuple[str, str]
"""A table as it stands in statements, and a key as text."""


class RowWaiterPresence:
    """Of one process. Rows come and go at home; the rest is on the listener's side."""

    def __init__(self, side: DriverLoop) -> None:
        """Nobody waits."""
        self.changed: asyncio.Event = asyncio.Event()
        self._side = side
        self._rings: dict[Row, Callable[[], object]] = {}
        self._there: dict[Row, tuple[int, int]] = {}
        self._hears = False

    def come(self, row: Row, ring: Callable[[], object]) -> None:
        """Somebody waits for it; ``ring`` is called at home."""
        self._side.spawn(partial(self._come, row, ring))

    def go(self, row: Row) -> None:
        """Nobody does."""
        self._side.spawn(partial(self._go, row))

    def begin(self) -> None:
        """There is a new connection."""
        self._there.clear()
        self._hears = False

    async def settle(self, connection: Connection) -> bool:
        """Be there for the rows that are waited for; False: try again soon."""
        self.changed.clear()
        for row in self._there.keys() - self._rings.keys():
            await connection.fetchval(statement("row_left"), *self._there.pop(row))
        missing = self._rings.keys() - self._there.keys()
        if missing and not self._hears:
            await connection.add_listener(CHANNEL, self._told)
            self._hears = True
        for row in missing:
            try:
                found = await connection.fetchrow(statement("row_waited_for"), *row)
            except PostgresError:  # e.g. the table is gone: the waiter will be told
                self._rings.pop(row, None)
                continue
            if found["done"]:
                self._there[row] = found["a"], found["b"]
                self._ring(row)
        return self._rings.keys() <= self._there.keys()

    async def _come(self, row: Row, ring: Callable[[], object]) -> None:
        self._rings[row] = ring
        self.changed.set()

    async def _go(self, row: Row) -> None:
        self._rings.pop(row, None)
        self.changed.set()

    def _told(self, _: Any, __: int, ___: str, payload: str) -> None:  # noqa: ANN401 - a connection
        for row, (a, b) in self._there.items():
            if payload == f"{a} {b}":
                self._ring(row)

    def _ring(self, row: Row) -> None:
        ring = self._rings.get(row)
        if ring is not None:
            self._side.tell(ring)
