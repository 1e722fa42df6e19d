"""``sqlite:///path``: locks among the processes of one host, in one file."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.sqlite.sqlite_file import (
    READ_TIMEOUT,
    FenceNeedsSync,
    Identity,
    SqliteFile,
    SyncLevel,
    identity_of,
    map_error,
    refuse_unsynced_fence,
    retry_while_busy,
    sync_level_for,
)
from aiorwlock_remote.cas.renewer import RowRenewer, RowsApartRenewer
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.row import (
    CONSTRAINT_HINT,
    Plan,
    Statement,
    StatementResult,
    run_plan_blocking,
)
from aiorwlock_remote.core.row_dialects import SQLITE, Dialect
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.embedded.boot_id import as_of_boot
from aiorwlock_remote.embedded.connection import (
    DecodeCache,
    Seen,
    WakeEvent,
    step_outcome,
)
from aiorwlock_remote.embedded.inotify import alarm
from aiorwlock_remote.embedded.store import EmbeddedStore
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    LockError,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    CallbackThread,
    Capability,
    Clock,
    EventLoop,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

Row = tuple[str | None, str | None, str | None, str | int | None]
"""Record, boot, ticket and ``acquired_at`` (unix seconds) of one resource."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.sqlite")

T = TypeVar("T")

BUSY_TIMEOUT = 5.0
"""Seconds for which another process may keep the file of the user's tables locked."""


class SqliteConnection:
    """A thread's connection to an SQLite file; a batch of steps is one transaction."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._sql = load_statements("aiorwlock_remote.backends.sqlite", "sqlite.sql")
        self._file = SqliteFile(path, self._sql, clock)
        self._run = self._file.run
        self._decoded = DecodeCache()
        # ``times_opened`` of the file whose log sets the alarm; 0: none does.
        self._alarm_of = 0

    def open(self, timeout: float) -> None:
        self._file.open(timeout)

    def close(self) -> None:
        self._file.close()

    def steps(
        self, batch: Iterable[tuple[Resource, Command]], timeout: float
    ) -> list[Step | Exception]:
        until = self._clock.now() + timeout
        asked = list(batch)
        self._file.follow()
        with self._file.mapped:
            level = sync_level_for(command for _, command in asked)
            if not self._file.boot:
                # The next boot will not know that it is another one, and would take a
                # grant for held whose release was lost (test_sqlite_power_cut.py:
                # test_where_the_next_boot_would_not_know_all_is_synced).
                level = "FULL"
            try:
                return self._carry_out_all(asked, level, until)
            except FenceNeedsSync:
                return self._carry_out_all(asked, "FULL", until)

    def look(self, resource: Resource) -> Snapshot:
        self._file.follow()
        with self._file.mapped:
            row = self._file.read(self._sql["load"], resource.row).fetchone()
            return self._snapshot(resource, row)

    def scan(self, seen: Seen) -> None:
        self._file.follow()
        with self._file.mapped:
            for kind, number, *row in self._file.read(self._sql["scan"]).fetchall():
                resource = resource_from_row(kind, number)
                try:
                    found = self._snapshot(resource, tuple(row))
                except BadRecord as exc:  # the other resources are shown all the same
                    log_event(
                        log, "bad_record", resource=resource.label, error=str(exc)
                    )
                    continue
                seen[f"{kind},{number}"] = found

    def forget(self, memory: float, after: Key = FIRST_KEY) -> Key | None:
        since = int(self._clock.wall() - memory)

        def portion() -> Key | None:
            found = self._run(self._sql["portion"], (*after, ROWS_PER_REQUEST))
            last: Key | None = found.fetchone()
            if last is not None:
                self._run(self._sql["forget"], (*after, *last, since))
            return last

        self._file.follow()
        with self._file.mapped:
            return self._file.atomically(portion, self._clock.now() + READ_TIMEOUT)

    def alarm(self) -> WakeEvent:
        # A commit writes to the log. The event comes with its first page, before
        # the commit is visible (``ChangeWatcher._run`` looks again).
        self._alarm_of = self._file.times_opened
        return alarm(self._file.path + "-wal")

    def version(self) -> object:
        self._file.follow()
        if self._alarm_of not in (0, self._file.times_opened):
            # The alarm is set by writes to the log that was removed
            # (test_sqlite_notices.py: test_another_file_has_another_log).
            raise BackendUnavailable(what=f"{self._file.path} was replaced")
        with self._file.mapped:
            return self._file.read("PRAGMA data_version").fetchone()[0]

    def _carry_out_all(
        self, batch: list[tuple[Resource, Command]], level: SyncLevel, until: float
    ) -> list[Step | Exception]:
        return self._file.atomically(
            lambda: [
                step_outcome(resource, partial(self._step, resource, command))
                for resource, command in batch
            ],
            until,
            level,
        )

    def _step(self, resource: Resource, command: Command) -> Step:
        key = resource.row
        row = self._run(self._sql["load"], key).fetchone()
        now, wall = micros(self._clock.now()), micros(self._clock.wall())
        record, seat = self._read(row, now)
        semaphore = resource.is_semaphore
        step = transition(record, seat, command, now, wall, semaphore=semaphore)
        refuse_unsynced_fence(self._file.level, record, step.record)
        if step.record is not record and step.record.updated:
            self._save(key, step.record)
        if step.seat is None and seat is not None:
            self._run(self._sql["vacate"], key)
        elif step.seat is not None and (seat is None or step.seat.value != seat.value):
            since = int(step.seat.value.rpartition(",")[2])
            self._run(self._sql["sit"], (*key, step.seat.ticket, since))
        return step

    def _read(self, row: Row, now: int) -> tuple[Doorman | None, MutexRecord | None]:
        text, boot, ticket, since = row
        seat = None if ticket is None else MutexRecord(f"{ticket},{since}")
        if text is None:
            return None, seat
        return as_of_boot(self._decoded(text), boot or "", self._file.boot, now), seat

    def _save(self, key: tuple[str, int], record: Doorman) -> None:
        readers = {
            grant.ticket: grant.since // MICROS
            for grant in record.grants
            if grant.mode is Mode.READ
        }
        text = dumps(record)
        self._decoded.keep(text, record)
        first = next((e for e in record.queue if e.mode is Mode.WRITE), None)
        writer = None if first is None else f"{first.client_id},{first.since // MICROS}"
        values = (
            *key,
            json.dumps(readers) if readers else "{}",
            first is not None,
            writer,
            record.updated // MICROS,
            record.created // MICROS,
            self._file.boot,
            text,
        )
        self._run(self._sql["save"], values)

    def _snapshot(self, resource: Resource, row: Row) -> Snapshot:
        now, wall = micros(self._clock.now()), micros(self._clock.wall())
        record, seat = self._read(row, now)
        return Snapshot(resource, record or UNUSED_DOORMAN, seat, now, wall)


class SqliteStore(EmbeddedStore):
    """Store with three connections: for steps, for the watcher, for renewals."""

    capabilities: Capability = EmbeddedStore.capabilities | Capability.ROW_LOCKS
    one_lock: bool = True

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
        self._new_plan_runner = partial(SqlitePlanRunner, table_file, loop)
        self._rows = self._new_plan_runner()

    @property
    def dialect(self) -> Dialect:
        return SQLITE

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        return self._rows.carry(plan)

    def renewer(self) -> RowsApartRenewer:
        runner = self._new_plan_runner()
        thread = CallbackThread(self.event_loop.clock)
        rows = RowRenewer(thread, runner.carry_blocking, runner.close)
        return RowsApartRenewer(super().renewer(), rows)

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

    def carry_blocking(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Run a plan in the calling thread, one at a time; its reply has come."""
        pending: Pending[T] = Pending()
        try:
            pending.set_result(self._run_plan(plan))
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            pending.set_exception(exc)
        return pending

    async def aclose(self) -> None:
        await self._plans.wait_closed()
        self._closed = True
        if self._thread is not None:
            closed: Pending[None] = Pending()
            self._thread.submit(self._run, self.close, closed)
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
            what = f"{self._path}: {exc}"
            raise ConfigurationError(what=what, refused="value") from exc
        return result

    def _opened(self, until: float) -> sqlite3.Connection:
        if identity_of(self._path) != self._identity:
            # Replaced, as by a backup: the row must be locked that others see
            # (test_sqlite_file_replaced.py: test_a_file_of_rows_that_is_replaced).
            self.close()
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

    def close(self) -> None:
        """Close the file; callable in any thread if no plan is running."""
        if self._db is not None:
            self._db.close()
            self._db = None


def _execute(db: sqlite3.Connection, statement: Statement) -> StatementResult:
    # Values by name: with ``?1`` in the text, Python 3.12 refuses a sequence.
    values = {str(number): value for number, value in enumerate(statement.values, 1)}
    cursor = db.execute(statement.text, values)
    found: list[Any] = cursor.fetchall()
    if statement.only_reads:
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
