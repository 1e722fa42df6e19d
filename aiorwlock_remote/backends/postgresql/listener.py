"""The one connection that listens: whoever is to come in next is told on its channel.

It is opened when somebody waits for the first time, and again whenever it is lost;
meanwhile the store polls. It also attends to rows of the user's, see ``attendance.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from random import random
from typing import Any

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.postgresql.connector import connecting
from aiorwlock_remote.backends.postgresql.driver import DRIVER, Connection
from aiorwlock_remote.backends.postgresql.errors import said
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.row_waiters import RowWaiterPresence
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.core.polling import back_off
from aiorwlock_remote.logs import log_event

CHANNEL = "rwlock_"
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
        self._channel = CHANNEL + gate
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
            found = _found(*news) if len(news) > 1 else None
        except (ValueError, TypeError, RecursionError):
            return  # not of ours: anybody may use the channel
        if not isinstance(kind, str) or not isinstance(number, int):
            return
        if len(news) == 1:
            self._side.tell(self._came, kind, number, str(news[0]))
        else:
            self._side.tell(self._heard, kind, number, found)


def _found(version: str, record: str, now: str) -> StoredRow:
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
