"""``sqlite:///path``: locks among the processes of one host, in one file."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote.backends.sqlite.connection import SqliteConnection
from aiorwlock_remote.backends.sqlite.errors import map_error
from aiorwlock_remote.backends.sqlite.sqlite_file import (
    Identity,
    identity_of,
    retry_while_busy,
)
from aiorwlock_remote.core.row import (
    CONSTRAINT_HINT,
    Plan,
    Statement,
    StatementResult,
    run_plan_blocking,
)
from aiorwlock_remote.core.row_dialects import SQLITE, Dialect
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.embedded.store import EmbeddedStore
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockError,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

log: logging.Logger = logging.getLogger("aiorwlock_remote.sqlite")

T = TypeVar("T")

BUSY_TIMEOUT = 5.0
"""Seconds for which another process may keep the file of the user's tables locked."""


class SqliteStore(EmbeddedStore):
    """Store with three connections: for steps, for the watcher, for renewals."""

    one_lock: bool = True
    dialect: Dialect = SQLITE

    def __init__(
        self,
        path: str,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        rows: str = "",
    ) -> None:
        """Use the file ``path``; the tables for row locks are in the file ``rows``.

        If ``rows`` is empty, they are in the same file.
        """
        # The watcher and the keeper open the file later, and the process may have
        # another working directory then (test_sqlite_hostile.py:
        # test_relative_path_and_chdir).
        file, table_file = _absolute_path(path), _absolute_path(rows or path)
        connect = partial(SqliteConnection, file, loop.clock)
        super().__init__(connect, "sqlite", loop, wake, settings)
        self._rows = SqlitePlanRunner(table_file, loop)

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        return self._rows.carry(plan)

    async def aclose(self) -> None:
        await self._rows.aclose()
        await super().aclose()


class SqlitePlanRunner:
    """Runs row locks' statements on the user's own tables.

    All statements of one operation (a ``Plan`` yields them) are one transaction. The
    tables are in the file of the locks, or in the one that ``?rows=`` names.
    """

    # With a thread of its own, since the user's transactions may lock the file for a
    # while, and the steps of other locks must not wait for them.
    def __init__(self, path: str, loop: EventLoop) -> None:
        self._path = path
        self._loop = loop
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._plans = InFlight()
        self._closed = False

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        if self._closed:
            closed = BackendUnavailable(what="the store is closed", nothing_done=True)
            pending.set_exception(closed)
            return pending
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "aiorwlock_remote sqlite rows")
        self._thread.submit(self._run, partial(self._run_plan, plan), pending)
        return self._plans.add(pending)

    async def aclose(self) -> None:
        await self._plans.wait_closed()
        self._closed = True
        if self._thread is not None:
            closed: Pending[None] = Pending()
            self._thread.submit(self._run, self._close, closed)
            self._thread.shutdown(wait=False)
            await closed

    def _run(self, job: Callable[[], T], pending: Pending[T]) -> None:
        try:
            value = job()
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            self._loop.call_soon(pending.set_exception, exc)
        else:
            self._loop.call_soon(pending.set_result, value)

    def _run_plan(self, plan: Plan[Statement, T]) -> T:
        clock = self._loop.clock
        until = clock.now() + BUSY_TIMEOUT
        try:
            db = self._opened(until)
            retry_while_busy(lambda: db.execute("BEGIN IMMEDIATE"), clock, until)
            try:
                result = run_plan_blocking(plan, partial(_execute, db))
                # In a file that is not in WAL mode, a commit waits for its readers.
                retry_while_busy(lambda: db.execute("COMMIT"), clock, until)
            except BaseException:
                db.execute("ROLLBACK")
                raise
        except sqlite3.Error as exc:
            raise self._rolled_back(exc) from exc
        except OverflowError as exc:
            raise ConfigurationError(what=f"{self._path}: {exc}") from exc
        return result

    def _opened(self, until: float) -> sqlite3.Connection:
        if identity_of(self._path) != self._identity:
            # Replaced, as by a backup: the row must be locked that others see
            # (test_sqlite_replaced.py: test_a_file_of_rows_that_is_replaced).
            self._close()
        if self._db is None:
            uri = f"{Path(self._path).as_uri()}?mode=rw"
            db = sqlite3.connect(
                uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
            )
            try:  # this statement reads the file
                full = partial(db.execute, "PRAGMA synchronous=FULL")
                retry_while_busy(full, self._loop.clock, until)
            except BaseException:
                db.close()
                raise
            self._db, self._identity = db, identity_of(self._path)
            log_event(log, "connection_opened", logging.DEBUG, path=self._path)
        return self._db

    def _rolled_back(self, exc: sqlite3.Error) -> LockError:
        if isinstance(exc, sqlite3.IntegrityError):
            return ConfigurationError(what=f"{self._path}: {exc}", hint=CONSTRAINT_HINT)
        error = map_error(exc, self._path, made=False)
        if isinstance(error, BackendError):
            error.nothing_done = True
        return error

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _execute(db: sqlite3.Connection, statement: Statement) -> StatementResult:
    # Values by name: with ``?1`` in the text, Python 3.12 refuses a sequence.
    values = {str(number): value for number, value in enumerate(statement.values, 1)}
    cursor = db.execute(statement.text, values)
    found: list[Any] = cursor.fetchall()
    if statement.tells:
        return StatementResult(rows=tuple(found))
    return StatementResult(cursor.rowcount)


def _absolute_path(path: str) -> str:
    try:
        return str(Path(path).absolute())
    except FileNotFoundError:
        raise ConfigurationError(
            what=f"{path} is below the current folder, which was removed",
            hint="say an absolute path: sqlite:////var/lib/app/locks.db",
        ) from None


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> SqliteStore:
    """Open a store: ``sqlite:///relative/path`` or ``sqlite:////absolute/path``.

    ``?rows=path`` names the file of the tables that row locks are for. ``wake(resource,
    seconds)`` is called in ``loop`` when a waiter may be granted after so many seconds.

    Raises:
        ConfigurationError: No path, a host, an option, or another application's file.
        BackendError: The file cannot be read, written, or is locked for too long.
    """
    address.only("rows")
    path = address.path.removeprefix("/")
    if address.host or address.username or not path or path == ":memory:":
        raise ConfigurationError(
            what="sqlite needs the path of a file",
            hint="sqlite:///relative.db, sqlite:////absolute.db, or use memory://",
        )
    rows = address.query.get("rows", "")
    store = SqliteStore(path, loop, wake, settings, rows)
    await store.open()
    return store
