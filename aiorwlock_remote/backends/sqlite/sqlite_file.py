"""A connection to an SQLite file: created if new, reopened if replaced; its errors."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import uniform
from typing import Literal, TypeVar

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote._util.native import sleep
from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.core.commands import Command, Release, Renew, Withdraw
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.embedded.mounts import mount_of
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}

_MAX_PATH_BYTES = 500
"""Bytes of a path: SQLite takes 512, and adds ``-journal``."""

APPLICATION_ID = 0x72776C6B
"""The text "rwlk" in the file's header: the file belongs to this library."""
REOPEN_TIMEOUT = 1.0
"""Seconds to open a file that took the place of the one that was open."""
READ_TIMEOUT = 1.0
"""Seconds for which a query waits while another process keeps the file locked."""
BUSY_PAUSE = 0.0002, 0.002
"""Bounds, in seconds, of the random pause between two tries for a locked file."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.sqlite")

SyncLevel = Literal["FULL", "NORMAL"]
"""Of ``PRAGMA synchronous``: whether a commit waits for the disk."""
Identity = tuple[int, int]
"""A file's device and inode number."""
Identities = tuple[Identity | None, ...]
"""The identities of the file, of its log, and of the log's index."""
T = TypeVar("T")


def is_busy(exc: sqlite3.Error) -> bool:
    """Return True if the error says that another process has the file locked."""
    return (getattr(exc, "sqlite_errorcode", 0) & 0xFF) in _BUSY


class ErrorMapper:
    """Reusable context manager that raises SQLite's errors as this library's."""

    # A class because each step passes it: ``contextmanager`` would make a generator.

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        exc = exc_info[1]
        if isinstance(exc, sqlite3.Error):
            raise map_error(exc, self._path) from exc


def map_error(
    exc: sqlite3.Error, path: str, *, made: bool = True
) -> BackendError | ConfigurationError:
    """Return this library's error for an error of SQLite, with a hint what to do.

    ``made``: the connection would create the file at ``path`` if the file is missing.
    """
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return BackendUnavailable(
            what=f"{path}: another process keeps the file locked",
            hint="is one stopped, or a tool open in a write transaction?",
            nothing_done=True,
        )
    if code == sqlite3.SQLITE_FULL:
        return BackendUnavailable(
            what=f"{path}: {exc}", hint="make room on the disk", nothing_done=True
        )
    if code in _BROKEN:
        return BadRecord(
            what=f"{path} is not a database of this library ({exc})",
            hint="give the locks a file of their own",
        )
    if code in _UNWRITABLE:
        return Unsupported(
            what=f"{path} cannot be written",
            hint="the file and its folder must be writable by this user",
            nothing_done=True,
        )
    if code == sqlite3.SQLITE_CANTOPEN and _could_be_opened(path, made=made):
        return BackendUnavailable(
            what=f"{path}: {exc}", hint="has the process no descriptors left (ulimit)?"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return ConfigurationError(
            what=f"{path} cannot be opened",
            hint="its folder must exist and be writable by this user",
        )
    if code == sqlite3.SQLITE_ERROR and "no such" in str(exc):
        return Unsupported(
            what=f"{path}: {exc}",
            hint="its tables were changed or dropped",
            nothing_done=True,
            lacks="tables",
        )
    return BackendUnavailable(what=f"{path}: {exc}")


def _could_be_opened(path: str, *, made: bool) -> bool:
    # Finds out without a descriptor whether anything is wrong with the file.
    # Then the process has no descriptors left, which passes: SQLite says the same in
    # both cases (test_sqlite_files.py: test_no_descriptor_is_left,
    # test_no_place_for_a_file).
    folder = Path(path).parent
    try:
        if len(os.fsencode(path)) >= _MAX_PATH_BYTES or not _has_access(
            folder, os.W_OK | os.X_OK
        ):
            return False
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return made and folder.is_dir()
    except OSError:
        return False
    return stat.S_ISREG(mode) and _has_access(Path(path), os.R_OK | os.W_OK)


def _has_access(path: Path, how: int) -> bool:
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)


class FenceNeedsSync(Exception):
    """Raised if a transaction that does not wait for the disk would create a fence."""


class SqliteFile:
    """A connection to one SQLite file in WAL mode. Blocks; for one thread.

    The methods raise the errors of ``sqlite3``; the context ``mapped`` turns them into
    this library's.

    Invariants, each with the test that fails without it (in ``tests/backends``):

    * A fence that was handed out survives a power cut: its commit waits for the disk
      (test_sqlite_power_cut.py: test_fences_go_on_and_nobody_is_blocked).
    * If another file takes the name, the connection does not continue with the old file
      while other processes use the new one (test_sqlite_file_replaced.py:
      test_all_processes_continue_with_the_new_file).
    * The connection grants no lock after the write-ahead log or its index was removed
      (test_sqlite_split.py: test_a_database_without_a_companion_file_grants_nothing).
      The last process to close the file removes the log. Another process takes itself
      for the last if this one lost its lock on the file, as happens once any code of
      this process has closed the file (`How to corrupt an SQLite database
      <https://www.sqlite.org/howtocorrupt.html>`_, 2.2; test_sqlite_split.py:
      test_a_database_without_its_log_grants_nothing).
    * Another application's database is not changed (test_sqlite_files.py:
      test_another_applications_database).
    * After any failure the file is not left locked (test_sqlite_hostile.py:
      test_failed_cleaning_leaves_the_file_free).
    """

    def __init__(self, path: str, sql: Mapping[str, str], clock: Clock) -> None:
        self.path: str = path
        self.mapped: ErrorMapper = ErrorMapper(path)
        # The boot in which the file was opened; empty: unknown.
        self.boot: str = ""
        # Which file, and which log, is open; None: it was never open.
        self.identity: Identities | None = None
        # How often it was opened: a new file may get the inode of a removed one.
        self.times_opened: int = 0
        # The sync level of the last transaction.
        self.level: SyncLevel = "FULL"
        self._sql = sql
        self._clock = clock
        self._db: sqlite3.Connection | None = None

    def open(self, timeout: float) -> None:
        """Open the file within ``timeout`` seconds; create tables if it is new."""
        self.close()
        until = self._clock.now() + timeout
        boot = boot_id.this_boot()
        _check_place(self.path)
        try:
            with self.mapped:
                self._open(boot, until)
        except BaseException:
            self.close()
            raise
        self.boot, self.identity = boot.id, _identities(self.path)
        self.times_opened += 1
        log_event(log, "connection_opened", logging.DEBUG, path=self.path)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
            log_event(log, "connection_closed", logging.DEBUG, path=self.path)

    def follow(self) -> None:
        """Reopen the file if another file has taken its name since ``open`` was called.

        Raises ``BackendError`` if it is the same file, without its write-ahead log or
        without the index of that log.
        """
        if self.identity is None:
            return
        if self._db is not None:
            now = _identities(self.path)
            if now == self.identity:
                return
            if now[0] == self.identity[0]:
                # A new connection would be no better: all connections of this process
                # to that file share what is left of the old log.
                raise BackendUnavailable(
                    what=f"the log of {self.path} (-wal, -shm) was removed: this "
                    "process lost its lock on the file, or a program deleted it",
                    hint="let nothing in this process open it, not even to copy it; "
                    "close all Locks on it, then connect again",
                    nothing_done=True,
                )
        log_event(log, "file_replaced", path=self.path)
        self.open(REOPEN_TIMEOUT)

    def read(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Return the answer to a query outside a transaction.

        Waits up to ``READ_TIMEOUT`` while another process keeps the file locked: also
        in WAL mode a query is refused while a process creates the log, repairs it, or
        removes it as the last to close (`Sometimes Queries Return SQLITE_BUSY In WAL
        Mode <https://www.sqlite.org/wal.html>`_, 8).
        """
        until = self._clock.now() + READ_TIMEOUT
        return self._retry(lambda: self.run(sql, values), until)

    def run(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._db is None:
            what = f"{self.path} is not open"
            raise BackendUnavailable(what=what, nothing_done=True)
        return self._db.execute(sql, values)

    def atomically(
        self, work: Callable[[], T], until: float, level: SyncLevel = "FULL"
    ) -> T:
        """Return the result of ``work()`` in one transaction; roll back if it fails.

        Waits for other processes until the local monotonic clock shows ``until``. At
        the ``level`` "NORMAL" the commit does not wait for the disk; at "FULL" it does.
        """
        if level != self.level:
            self._set_level(level, until)
        self._retry(lambda: self.run("BEGIN IMMEDIATE"), until)
        try:
            done = work()
            self.run("COMMIT")
        except BaseException:
            if self._db is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return done

    def _retry(self, action: Callable[[], T], until: float) -> T:
        return retry_while_busy(action, self._clock, until)

    def _set_level(self, level: SyncLevel, until: float) -> None:
        # SQLite sets the level when it compiles the statement: one from the cache of
        # compiled statements, which ``execute`` has, would do nothing.
        if self._db is not None:
            script = f"PRAGMA synchronous={level}"
            self._retry(partial(self._db.executescript, script), until)
            self.level = level

    def _open(self, boot: BootId, until: float) -> None:
        self._db = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        self._retry(self._check_owner, until)
        self._retry(lambda: self.run("PRAGMA journal_mode=WAL"), until)
        self._set_level("FULL", until)
        if not self._retry(lambda: self._is_ready(boot), until):
            self.atomically(lambda: self._create_tables(boot), until)

    def _is_ready(self, boot: BootId) -> bool:
        kept = self._kept_boot() if "boots" in self._tables() else None
        return kept is not None and boot.joining(kept, self.path) == kept

    def _create_tables(self, boot: BootId) -> None:
        for statement in statements_of_sqlite():
            self.run(statement)
        joined = boot.joining(self._kept_boot(), self.path)
        self.run(self._sql["keep_boot"], (joined.id, joined.shift))

    def _check_owner(self) -> None:
        owner = self.run("PRAGMA application_id").fetchone()[0]
        names = self._tables() - {"mutex_locks", "doormans", "boots"}
        if owner != APPLICATION_ID and (owner or names):
            raise ConfigurationError(
                what=f"{self.path} belongs to another application",
                hint="give the locks a file of their own",
            )

    def _tables(self) -> set[str]:
        tables = self.run("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in tables.fetchall()}

    def _kept_boot(self) -> BootId | None:
        row = self.run(self._sql["boot"]).fetchone()
        return None if row is None else BootId(*row)


def statements_of_sqlite() -> tuple[str, ...]:
    """Return the statements that make an empty file a lock database.

    In a file that is a lock database already they change nothing. ``connect`` executes
    the statements itself.
    """
    schema = load_statements("aiorwlock_remote.backends.sqlite", "sqlite.sql")["schema"]
    tables = schema.removesuffix(";").split(";\n")
    return (*tables, f"PRAGMA application_id={APPLICATION_ID}")


def sync_level_for(commands: Iterable[Command]) -> SyncLevel:
    """Return "FULL" (commit on disk) if a command may make a fence, else "NORMAL"."""
    # Only a new fence must survive a power cut. All users of the file are on one host:
    # a power cut ends them, and the next boot ends their grants and queue entries
    # (``Doorman.after_reboot``). So a commit that hands out no fence need not wait for
    # the disk. In WAL mode it reaches the disk before any later commit, and a process
    # that is killed takes nothing with it (test_sqlite_power_cut.py:
    # test_a_release_is_not_synced).
    return "NORMAL" if all(map(_makes_no_fence, commands)) else "FULL"


def refuse_unsynced_fence(
    level: SyncLevel, before: Doorman | None, after: Doorman
) -> None:
    """Raise ``FenceNeedsSync`` for a new fence, unless the commit waits for the disk.

    The commit waits at the ``level`` "FULL". ``before`` and ``after`` are a resource's
    record around a step; None: no record.
    """
    last = 0 if before is None else before.last
    if level != "FULL" and after.last > last:
        raise FenceNeedsSync


def retry_while_busy(action: Callable[[], T], clock: Clock, until: float) -> T:
    """Return the result of ``action()``; retry while another process locks the file.

    Raises SQLite's error if the file is still locked when ``clock`` shows ``until``.
    """
    # SQLite's own busy handler sleeps up to 100 ms between tries. Many processes that
    # each need the file for less than a millisecond need shorter, random pauses.
    began: float | None = None
    while True:
        try:
            result = action()
        except sqlite3.OperationalError as exc:
            began = clock.now() if began is None else began
            if not is_busy(exc) or clock.now() >= until:
                raise
            sleep(uniform(*BUSY_PAUSE))
        else:
            if began is not None and log.isEnabledFor(logging.DEBUG):
                waited = clock.now() - began
                log_event(log, "transaction_retried", logging.DEBUG, waited=waited)
            return result


def identity_of(path: str) -> Identity | None:
    """Return device and inode of the file at ``path``; None if it cannot be seen."""
    try:
        there = os.stat(path)  # noqa: PTH116 - at each step
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _makes_no_fence(command: Command) -> bool:
    if isinstance(command, Release):
        return not command.then
    return isinstance(command, Renew | Withdraw)


def _identities(path: str) -> Identities:
    # Without the index two processes do not see each other's locks on the file, and
    # both write (test_sqlite_split.py:
    # test_a_database_without_a_companion_file_grants_nothing).
    return tuple(identity_of(path + part) for part in ("", "-wal", "-shm"))


def _check_place(path: str) -> None:
    # The log is beside the file: a process that opens the file by another path would
    # use another log (test_sqlite_split.py: test_the_file_alone_is_mounted).
    where = os.path.realpath(path)
    if mount_of(path).place == where:
        raise ConfigurationError(
            what=f"{where} is mounted on its own, without what SQLite keeps beside it",
            hint="mount the directory, never the file alone",
        )
