"""``sqlite:///path`` — locks among the processes of one host, in one file.

Statements on the user's own tables, for row locks: a thread and a connection.

The tables are in the file of the locks, or in the one that ``?rows=`` names, of which
nothing but those rows is changed. That file's lock may be held by the user's own
transactions for a while; so it has a thread for itself.
"""

from __future__ import annotations

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
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    StoreSettings,
    WakeCallback,
)

T = TypeVar("T")

BUSY_TIMEOUT = 5.0
"""Seconds for which another process may keep the file locked."""


class SqlitePlanRunner:
    """Carries out plans, each in one transaction, in order."""

    def __init__(self, path: str, host: EventLoop) -> None:
        """Opened by the first plan."""
        self._path = path
        self._host = host
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._plans = InFlight()
        self._closed = False

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Hand it to the thread."""
        pending: Pending[T] = Pending()
        if self._closed:
            closed = BackendUnavailable(what="the store is closed", nothing_done=True)
            pending.set_exception(closed)
            return pending
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "aiorwlock_remote sqlite rows")
        self._thread.submit(self._run, partial(self._carried, plan), pending)
        return self._plans.add(pending)

    async def aclose(self) -> None:
        """Finish what is under way and close the file."""
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
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            self._host.call_soon(pending.set_exception, exc)
        else:
            self._host.call_soon(pending.set_result, value)

    def _carried(self, plan: Plan[Statement, T]) -> T:
        clock = self._host.clock
        until = clock.now() + BUSY_TIMEOUT
        try:
            db = self._opened(until)
            retry_while_busy(lambda: db.execute("BEGIN IMMEDIATE"), clock, until)
            try:
                told = run_plan_blocking(plan, partial(_execute, db))
                # A file that is not in WAL mode: whoever reads it is waited for here.
                retry_while_busy(lambda: db.execute("COMMIT"), clock, until)
            except BaseException:
                db.execute("ROLLBACK")
                raise
        except sqlite3.Error as exc:
            raise self._undone(exc) from exc
        except OverflowError as exc:
            raise ConfigurationError(what=f"{self._path}: {exc}") from exc
        return told

    def _opened(self, until: float) -> sqlite3.Connection:
        if identity_of(self._path) != self._identity:  # replaced, as by a backup
            self._close()
        if self._db is None:
            uri = f"{Path(self._path).as_uri()}?mode=rw"
            db = sqlite3.connect(
                uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
            )
            try:  # reads the file
                full = partial(db.execute, "PRAGMA synchronous=FULL")
                retry_while_busy(full, self._host.clock, until)
            except BaseException:
                db.close()
                raise
            self._db, self._identity = db, identity_of(self._path)
        return self._db

    def _undone(self, exc: sqlite3.Error) -> LockError:
        if isinstance(exc, sqlite3.IntegrityError):
            return ConfigurationError(what=f"{self._path}: {exc}", hint=CONSTRAINT_HINT)
        error = map_error(exc, self._path, made=False)
        if isinstance(error, BackendError):  # it was rolled back
            error.nothing_done = True
        return error

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _execute(db: sqlite3.Connection, statement: Statement) -> StatementResult:
    # By name: in a sequence Python 3.12 wants nothing but bare question marks.
    values = {str(number): value for number, value in enumerate(statement.values, 1)}
    cursor = db.execute(statement.text, values)
    found: list[Any] = cursor.fetchall()
    return (
        StatementResult(rows=tuple(found))
        if statement.tells
        else StatementResult(cursor.rowcount)
    )


class SqliteStore(EmbeddedStore):
    """One connection for steps, one to watch, one to renew."""

    capabilities: Capability = EmbeddedStore.capabilities
    one_lock: bool = True

    def __init__(
        self,
        path: str,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        rows: str = "",
    ) -> None:
        """The file is opened by the first job of the worker.

        ``rows``: the file of the user's tables, if it is another one.
        """
        file, table_file = _absolute_path(path), _absolute_path(rows or path)
        connect = partial(SqliteConnection, file, host.clock)
        super().__init__(connect, "sqlite", host, bell, settings)
        self._rows = SqlitePlanRunner(table_file, host)

    @property
    def dialect(self) -> Dialect:
        """Of statements on the user's tables."""
        return SQLITE

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Statements on the user's tables; see ``SupportsRowLocks``."""
        return self._rows.carry(plan)

    async def aclose(self) -> None:
        """Finish what is queued and close the files."""
        await self._rows.aclose()
        await super().aclose()


def _absolute_path(path: str) -> str:
    """The keeper and the watcher open it later, maybe from elsewhere."""
    try:
        return str(Path(path).absolute())
    except FileNotFoundError:
        raise ConfigurationError(
            what=f"{path} is below the current folder, which was removed",
            hint="say an absolute path: sqlite:////var/lib/app/locks.db",
        ) from None


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> SqliteStore:
    """Open ``sqlite:///relative/path`` or ``sqlite:////absolute/path``.

    ``?rows=path``: the file of the tables that row locks are for.

    Raises:
        ConfigurationError: no path, a host, an option, or another application's file.
        BackendError: the file cannot be read, written, or is locked for too long.
    """
    address.only("rows")
    path = address.path.removeprefix("/")
    if address.host or address.username or not path or path == ":memory:":
        raise ConfigurationError(
            what="sqlite needs the path of a file",
            hint="sqlite:///relative.db, sqlite:////absolute.db, or use memory://",
        )
    rows = address.query.get("rows", "")
    store = SqliteStore(path, host, bell, settings, rows)
    await store.open()
    return store
