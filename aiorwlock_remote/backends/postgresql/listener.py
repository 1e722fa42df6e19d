"""The connection on which one process receives notifications."""

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
from aiorwlock_remote.backends.postgresql.driver import (
    ASYNCPG,
    Connection,
    PostgresqlDriver,
)
from aiorwlock_remote.backends.postgresql.errors import PostgresError, message_of
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas.table_cas import StoredRow, micros_of
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.logs import log_event

CHANNEL_PREFIX = "rwlock_"
"""A client's channel is this prefix and its id, as ``wake`` in ``statements.sql``."""
ROW_CHANNEL = "rwlock_rows"
"""Channel for unlocked rows, as ``freed`` in ``row_dialects.py``."""
CHECK_INTERVAL = 5.0
"""Seconds without a notification after which a request checks the connection."""
ROW_FIELDS = 3
"""Items of a notification about the stored row; the last ones, if it has them."""
PUSHED_FIELDS = 4 + ROW_FIELDS
"""Items after type and id of a notification that a grant was pushed."""
RETRY_INTERVAL = 0.1
"""Seconds until a new attempt at an advisory lock that another session holds."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")

WaitedRow = tuple[str, str]
"""Table name as it is written in SQL, and the row's key as text."""


# A row lock is three columns in the user's row, with no room for a queue. So a waiter
# shares an advisory lock on two numbers made of table and key, over the connection that
# listens. An unlock (``freed`` in ``row_dialects.py``) sends a notification only if it
# cannot have that lock alone: without waiters none is sent (test_row_waiters.py).
class RowWaiterPresence:
    """Advisory locks in the server that show for which rows this process's tasks wait.

    A program that unlocks such a row of a user's table sees them, and then sends a
    notification.
    """

    def __init__(self, driver_loop: DriverLoop) -> None:
        self.changed: asyncio.Event = asyncio.Event()
        self._driver_loop = driver_loop
        self._wakes: dict[WaitedRow, Callable[[], object]] = {}
        self._locked: dict[WaitedRow, tuple[int, int]] = {}
        self._listening = False

    def add(self, row: WaitedRow, wake: Callable[[], object]) -> None:
        """Show that a task waits for ``row`` (table and key).

        ``wake()`` is called in the store's loop when the row may be free.
        """
        self._driver_loop.spawn(partial(self._set, row, wake))

    def remove(self, row: WaitedRow) -> None:
        self._driver_loop.spawn(partial(self._set, row, None))

    def reset(self) -> None:
        """Note that the connection was lost, and with it all advisory locks."""
        self._locked.clear()
        self._listening = False

    async def update(self, connection: Connection) -> bool:
        """Make the advisory locks on ``connection`` match the rows that tasks wait for.

        Return False if the call must be repeated, because another session holds one.
        """
        self.changed.clear()
        for row in self._locked.keys() - self._wakes.keys():
            await connection.fetchval(statement("row_left"), *self._locked.pop(row))
        missing = self._wakes.keys() - self._locked.keys()
        if missing and not self._listening:
            await connection.add_listener(ROW_CHANNEL, self._notified)
            self._listening = True
        for row in missing:
            try:
                found = await connection.fetchrow(statement("row_waited_for"), *row)
            except PostgresError:
                # E.g. the table is gone. The waiter's own statement will report that.
                self._wakes.pop(row, None)
                continue
            if found["done"]:
                self._locked[row] = found["a"], found["b"]
                # An unlock just before has sent no notification: look once more.
                self._wake(row)
        return self._wakes.keys() <= self._locked.keys()

    async def _set(self, row: WaitedRow, wake: Callable[[], object] | None) -> None:
        if wake is None:
            self._wakes.pop(row, None)
        else:
            self._wakes[row] = wake
        self.changed.set()

    def _notified(self, _: Any, __: int, ___: str, payload: str) -> None:  # noqa: ANN401 - a connection
        for row, (a, b) in self._locked.items():
            if payload == f"{a} {b}":
                self._wake(row)

    def _wake(self, row: WaitedRow) -> None:
        wake = self._wakes.get(row)
        if wake is not None:
            self._driver_loop.tell(wake)


class Listener:
    """Receives the notifications for one process, on a connection of its own.

    Invariants, each with the test in ``tests/backends/postgresql`` that fails without
    it:

    * The connection is opened for the first waiting task, or when another process has
      waited for what this one held, and kept until the store closes
      (``test_listener.py``, ``test_it_is_there_as_long_as_the_locks_are``).
    * A lost connection is opened again. Meanwhile the store polls; when the connection
      is back, the store looks once at each resource, because notifications are hints
      that may be lost (``test_listener.py``, ``test_lost_it_comes_again``).
    * A payload that is not of this library is ignored: any session may send on the
      channel (``test_notified.py``, ``test_a_notification_that_is_not_ours``).
    * No connection listens through a pooler: its sessions change with each transaction
      (``test_pgbouncer.py``, ``test_a_client_without_notifications_polls``).
    """

    def __init__(
        self,
        driver_loop: DriverLoop,
        options: Options,
        client_id: str,
        on_wake: Callable[[str, int, StoredRow | None, PushedGrant | None], object],
        on_arrival: Callable[[str, int, str], object],
        on_listening: Callable[[bool], object],
    ) -> None:
        """Create a listener that is not connected.

        Args:
            driver_loop: The connection's event loop. Callbacks run in the store's own
                loop.
            options: The options of the store.
            client_id: Id of the client to which notifications are sent.
            on_wake: Called with type and id of a resource that this client may claim,
                with its stored row, if the notification contains it, and with the grant
                that was pushed to this client, if it names one: then the record in the
                row is sealed (``pushed_state``).
            on_arrival: Called with type, id and version of a resource that this client
                holds and that has a new queue entry.
            on_listening: Called with True when the connection listens, False when lost.
        """
        self.rows: RowWaiterPresence = RowWaiterPresence(driver_loop)
        self._driver_loop = driver_loop
        self._server = PostgresqlDriver(options.listen_at or options)
        self._check_pooler = options.listen_at is None
        self._channel = CHANNEL_PREFIX + client_id
        self._on_wake = on_wake
        self._on_arrival = on_arrival
        self._on_listening = on_listening
        self._wanted = options.listen
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def start(self) -> None:
        """Connect and listen in the background, unless started or switched off."""
        if self._wanted:
            self._wanted = False
            self._driver_loop.spawn(self._run)

    async def close(self) -> None:
        """Close the connection. Must be called in the driver's loop."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self._task})

    async def _run(self) -> None:
        # The store may have been closed before this task began.
        if self._ended:
            return
        self._task = asyncio.current_task()
        attempt = 0
        while True:
            try:
                if not await self._listen():
                    return
                attempt = 0
            except asyncio.CancelledError:
                # By a program that cancels all of its tasks and goes on: the next
                # waiter starts another one
                # (test_cancelled_from_outside_it_comes_again).
                self._wanted = not self._ended
                raise
            except Exception as exc:  # noqa: BLE001 - asyncpg's own mistakes, too
                where = self._server.options.where
                log_event(log, "listener_lost", server=where, error=message_of(exc))
            await asyncio.sleep(back_off(attempt, random()))
            attempt += 1

    async def _listen(self) -> bool:
        options, lost = self._server.options, False
        limit = options.call_timeout

        def ended(_: object) -> None:
            nonlocal lost
            lost = True
            self.rows.changed.set()

        connection: Connection = await ASYNCPG.connect(**self._server.arguments())
        try:
            if self._check_pooler and await is_pooled(connection):
                log_event(
                    log,
                    "listen_needs_direct_connection",
                    server=options.where,
                    hint="listen=no, or the URL of the server itself",
                )
                return False
            self.rows.reset()
            connection.add_termination_listener(ended)
            async with asyncio.timeout(limit):
                await connection.execute(statement("stay"))
                await connection.add_listener(self._channel, self._notified)
            log_event(log, "listener_subscribed", logging.DEBUG, server=options.where)
            self._driver_loop.tell(self._on_listening, True)  # noqa: FBT003
            while not lost:
                async with asyncio.timeout(limit):
                    done = await self.rows.update(connection)
                pause = CHECK_INTERVAL if done else RETRY_INTERVAL
                try:
                    async with asyncio.timeout(pause):
                        await self.rows.changed.wait()
                except TimeoutError:
                    # A connection that a firewall has dropped stays quiet for ever.
                    await connection.execute("SELECT 1", timeout=limit)
            return True
        finally:
            # ``close`` would wait for the server, which may be silent.
            connection.terminate()
            if not self._ended:
                log_event(log, "polling_started", logging.DEBUG, server=options.where)
            self._driver_loop.tell(self._on_listening, False)  # noqa: FBT003

    def _notified(self, _: Any, __: int, ___: str, payload: str) -> None:  # noqa: ANN401 - a connection
        try:
            kind, number, *news = json.loads(payload)
            pushed, found = None, None
            if len(news) == PUSHED_FIELDS:
                pushed = _pushed_grant(*news[:-ROW_FIELDS])
            if len(news) >= ROW_FIELDS and news[-2] is not None:
                found = _stored_row(*news[-ROW_FIELDS:])
        except (ValueError, TypeError, OverflowError, RecursionError, BadRecord):
            # Any session may send anything on the channel.
            return
        if not isinstance(kind, str) or not isinstance(number, int):
            return
        if len(news) == 1:
            self._driver_loop.tell(self._on_arrival, kind, number, str(news[0]))
        else:
            self._driver_loop.tell(self._on_wake, kind, number, found, pushed)


def _pushed_grant(fence: int, since: int, expires: int, proof: str) -> PushedGrant:
    # Numbers only if they are numbers: ``proof`` is of their text.
    return PushedGrant(int(fence), int(since), int(expires), str(proof))


def _stored_row(version: str, record: str, now: str) -> StoredRow:
    # Only a release sends its record, so no mutex row is stored.
    return StoredRow(
        done=False, now=micros_of(now), version=str(version), record=str(record)
    )


async def is_pooled(connection: Connection) -> bool:
    """Return True if a pooler stands between this connection and the server."""
    # A pooler gives its own number for the session, not the server process's.
    return bool(
        await connection.fetchval("SELECT pg_backend_pid()", timeout=CHECK_INTERVAL)
        != connection.get_server_pid()
    )


# The release then starts from that state. Without the read its swap would be refused
# once, while another process waits for it (test_arrival_reader.py).
class ArrivalReader:
    """Reads the state of a held resource again when another process joins its queue."""

    def __init__(
        self,
        read: Callable[[Resource], Pending[StoredState]],
        known: Callable[[Resource], StoredState | None],
        saw: Callable[[Resource, StoredState], object],
    ) -> None:
        self._read = read
        self._known = known
        self._saw = saw
        self._latest: dict[Resource, str] = {}  # versions, while a read is under way

    def arrived(self, resource: Resource, version: str) -> None:
        """Read the resource again: another process has stored a new ``version``.

        Nothing is read if this process has released the resource meanwhile, or knows
        that version already.
        """
        known = self._known(resource)
        # The grant has ended meanwhile, or the state was seen by another request.
        if known is None or known.seat is None or known.mark.version == version:
            return
        reading = resource in self._latest
        self._latest[resource] = version
        if not reading:
            done = partial(self._was_read, resource, version)
            self._read(resource).add_done_callback(done)

    def _was_read(
        self, resource: Resource, version: str, read: Pending[StoredState]
    ) -> None:
        latest = self._latest.pop(resource)
        if read.error is None:  # else the release finds out by itself
            self._saw(resource, read.result())
            if latest != version:
                self.arrived(resource, latest)
