"""The one connection that listens: whoever is to come in next is told on its channel.

It is opened when somebody waits for the first time, and again whenever it is lost;
meanwhile the store polls. It also attends to rows of the user's, see ``attendance.py``.

Rows of the user's that somebody here waits for, to be seen by who gives them back.

A row lock is three columns: nothing in the row says that anybody waits. So who waits
has a shared advisory lock on two numbers made of the table and the key, on the
connection that listens; and who frees the row (``freed`` in ``row_dialects.py``) tells
a channel, if it cannot have those numbers alone. With nobody waiting nothing is told.

What is given back just before that lock was there is told to nobody: so there is one
ring when it is.

Who holds a resource reads what stands there when somebody has queued up behind it.

So its release starts from that and is not refused, see ``ears.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import random
from typing import Any

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.postgresql.connector import connecting
from aiorwlock_remote.backends.postgresql.driver import (
    DRIVER,
    Connection,
    PostgresError,
)
from aiorwlock_remote.backends.postgresql.errors import said
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.logs import log_event

ROW_CHANNEL = "rwlock_rows"
"""As ``freed`` has it."""

WaitedRow = tuple[str, str]
"""A table as it stands in statements, and a key as text."""


class RowWaiterPresence:
    """Of one process. Rows come and go at home; the rest is on the listener's side."""

    def __init__(self, side: DriverLoop) -> None:
        """Nobody waits."""
        self.changed: asyncio.Event = asyncio.Event()
        self._side = side
        self._rings: dict[WaitedRow, Callable[[], object]] = {}
        self._there: dict[WaitedRow, tuple[int, int]] = {}
        self._hears = False

    def come(self, row: WaitedRow, ring: Callable[[], object]) -> None:
        """Somebody waits for it; ``ring`` is called at home."""
        self._side.spawn(partial(self._come, row, ring))

    def go(self, row: WaitedRow) -> None:
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
            await connection.add_listener(ROW_CHANNEL, self._told)
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

    async def _come(self, row: WaitedRow, ring: Callable[[], object]) -> None:
        self._rings[row] = ring
        self.changed.set()

    async def _go(self, row: WaitedRow) -> None:
        self._rings.pop(row, None)
        self.changed.set()

    def _told(self, _: Any, __: int, ___: str, payload: str) -> None:  # noqa: ANN401 - a connection
        for row, (a, b) in self._there.items():
            if payload == f"{a} {b}":
                self._ring(row)

    def _ring(self, row: WaitedRow) -> None:
        ring = self._rings.get(row)
        if ring is not None:
            self._side.tell(ring)


CHANNEL_PREFIX = "rwlock_"
"""Before the gate of a process: the channel on which it is told. As ``wake`` has it."""
CHECK_INTERVAL = 5.0
"""Seconds after which a quiet connection is asked whether it is still there."""

RETRY_INTERVAL = 0.1
"""The same, while a row could not be attended to: somebody had locked its numbers."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")


class Listener:
    """Lives on a side; tells at home."""

    def __init__(
        self,
        side: DriverLoop,
        options: Options,
        gate: str,
        attendance: RowWaiterPresence,
        heard: Callable[[str, int, StoredRow | None], object],
        came: Callable[[str, int, str], object],
        listens: Callable[[bool], object],
    ) -> None:
        """``attendance``: of rows of the user's, on the same side.

        ``heard(type, id, found)``: it is our turn there; perhaps what stands there.

        ``came(type, id, version)``: somebody queued up there behind us.

        ``listens``: from now on, or not.

        All are called at home.
        """
        self._side = side
        self._options = options
        self._channel = CHANNEL_PREFIX + gate
        self._attendance = attendance
        self._heard = heard
        self._came = came
        self._listens = listens
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def start(self) -> None:
        """Connect and listen, from home."""
        self._side.spawn(self._run)

    async def close(self) -> None:
        """On its side."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self._task})

    async def _run(self) -> None:
        if self._ended:
            return
        self._task = asyncio.current_task()
        attempt = 0
        while True:
            try:
                if not await self._listen():
                    return
                attempt = 0
            except Exception as exc:  # noqa: BLE001 - asyncpg's own mistakes, too
                where = self._options.where
                log_event(log, "listener_lost", server=where, error=said(exc))
            await asyncio.sleep(back_off(attempt, random()))
            attempt += 1

    async def _listen(self) -> bool:
        """Until the connection is lost; whether it is worth to try again."""
        options, lost = self._options.listen_at or self._options, False
        attendance, patience = self._attendance, options.call_timeout

        def ended(_: object) -> None:
            nonlocal lost
            lost = True
            attendance.changed.set()

        connection: Connection = await DRIVER.connect(**connecting(options))
        try:
            if self._options.listen_at is None and await _pooled(connection):
                hint = "listen=no, or the URL of the server itself"
                log_event(
                    log,
                    "listen_needs_direct_connection",
                    server=options.where,
                    hint=hint,
                )
                return False
            attendance.begin()
            connection.add_termination_listener(ended)
            async with asyncio.timeout(patience):
                await connection.execute(statement("stay"))
                await connection.add_listener(self._channel, self._told)
            self._side.tell(self._listens, True)  # noqa: FBT003
            while not lost:
                async with asyncio.timeout(patience):
                    done = await attendance.settle(connection)
                try:
                    async with asyncio.timeout(
                        CHECK_INTERVAL if done else RETRY_INTERVAL
                    ):
                        await attendance.changed.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=patience)
            return True
        finally:
            connection.terminate()
            self._side.tell(self._listens, False)  # noqa: FBT003

    def _told(self, _: Any, __: int, ___: str, payload: str) -> None:  # noqa: ANN401 - a connection
        try:
            kind, number, *news = json.loads(payload)
            found = _row_told(*news) if len(news) > 1 else None
        except (ValueError, TypeError, RecursionError):
            return  # not of ours: anybody may use the channel
        if not isinstance(kind, str) or not isinstance(number, int):
            return
        if len(news) == 1:
            self._side.tell(self._came, kind, number, str(news[0]))
        else:
            self._side.tell(self._heard, kind, number, found)


def _row_told(version: str, record: str, now: str) -> StoredRow:
    """What stands there since: nobody sits there."""
    return StoredRow(
        done=False,
        now=str(now),
        version=str(version),
        record=str(record),
    )


async def _pooled(connection: Connection) -> bool:
    """Whether a pooler is in between: it tells a number of its own for the session.

    A session may be another one for each transaction there, and nobody would be told.
    """
    return bool(
        await connection.fetchval("SELECT pg_backend_pid()", timeout=CHECK_INTERVAL)
        != connection.get_server_pid()
    )


class ArrivalReader:
    """Reads one resource once at a time, however many come. Lives in the loop."""

    def __init__(
        self,
        read: Callable[[Resource], Pending[StoredState]],
        known: Callable[[Resource], StoredState | None],
        saw: Callable[[Resource, StoredState], object],
    ) -> None:
        """``known``: what was seen last. ``saw``: told of what was read."""
        self._read = read
        self._known = known
        self._saw = saw
        self._told: dict[Resource, str] = {}  # the last, while a read is under way

    def came(self, resource: Resource, version: str) -> None:
        """There is a new place, and so that version."""
        known = self._known(resource)
        if known is None or known.seat is None or known.mark.version == version:
            return  # we have left, or know
        under_way = resource in self._told
        self._told[resource] = version
        if not under_way:
            self._read(resource).add_done_callback(
                partial(self._looked, resource, version)
            )

    def _looked(
        self, resource: Resource, version: str, read: Pending[StoredState]
    ) -> None:
        last = self._told.pop(resource)
        if read.error is None:  # else the release will tell
            self._saw(resource, read.result())
            if last != version:
                self.came(resource, last)
