"""An SQLite file of ours, open in one thread: made if it is new, followed if replaced.

Whoever has a file open goes on with it when it is removed or replaced, beside those who
open the new one: so it is looked at each time whether it still has its name. So has its
log: whoever closes the file as the last one removes that, and takes itself for the last
one if our lock on the file is gone, as it is once any code of this process has closed
the file (`SQLite: how to corrupt <https://www.sqlite.org/howtocorrupt.html>`_, 2.2).

Waiting for a file that another process has locked for a moment.

What has to outlive a power cut: a fence that nobody had before, and nothing else.

All who use the file are on one host. A power cut ends them, and the next boot ends what
they held or waited for (``Doorman.after_reboot``). So a commit that hands out no fence
need not wait for the disk: in WAL mode it reaches it before any later one does, and a
process that is killed takes nothing with it.

Which file has a name now: SQLite goes on with one that has lost it.

What makes a file one of ours: the tables of the SQLite store, and the mark.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import uniform
from typing import Literal, TypeVar

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.sqlite.errors import ErrorMapper, is_busy
from aiorwlock_remote.core.commands import Command, Release, Renew, Withdraw
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.embedded.mounts import mount_of
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock


def retry_while_busy(action: Callable[[], object], clock: Clock, until: float) -> None:
    """Do it, again and again until a local time if the file is locked.

    SQLite's own busy handler sleeps up to 100 ms between tries; many processes that
    each want the file for less than a millisecond need shorter, random ones.
    """
    while True:
        try:
            action()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or clock.now() >= until:
                raise
            time.sleep(uniform(0.0002, 0.002))
        else:
            return


SyncLevel = Literal["FULL", "NORMAL"]
"""Of ``PRAGMA synchronous``: whether a commit waits for the disk."""


class FenceNeedsSync(Exception):
    """A step hands one out, which was not to be expected."""


def sync_level_for(commands: Iterable[Command]) -> SyncLevel:
    """That which these need, as far as can be told before they are carried out."""
    return "NORMAL" if all(map(_makes_no_fence, commands)) else "FULL"


def refuse_unsynced_fence(
    level: SyncLevel, before: Doorman | None, after: Doorman
) -> None:
    """See to it that no fence is handed out by a commit that does not wait.

    Raises:
        NewFence: it would be.
    """
    last = 0 if before is None else before.last
    if level != "FULL" and after.last > last:
        raise FenceNeedsSync


def _makes_no_fence(command: Command) -> bool:
    if isinstance(command, Release):
        return not command.then
    return isinstance(command, Renew | Withdraw)


Identity = tuple[int, int]


def identity_of(path: str) -> Identity | None:
    """The file's device and number; None: there is none, or it cannot be seen."""
    try:
        there = os.stat(path)  # noqa: PTH116 - at each step
    except OSError:
        return None
    return there.st_dev, there.st_ino


APPLICATION_ID = 0x72776C6B  # "rwlk", in the file's header


def statements_of_sqlite() -> tuple[str, ...]:
    """To be carried out in an empty file; harmless in one of ours.

    ``connect`` does it by itself.
    """
    made = load_statements("aiorwlock_remote.backends.sqlite", "sqlite.sql")["schema"]
    tables = made.removesuffix(";").split(";\n")
    return (*tables, f"PRAGMA application_id={APPLICATION_ID}")


OPEN_TIMEOUT = 1.0
"""Seconds for a file that took the place of ours."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.sqlite")

Identities = tuple[Identity | None, Identity | None]
"""Of the file and of its log."""
T = TypeVar("T")


class SqliteFile:
    """Everything here blocks.

    What SQLite raises is to be told as ours by ``mapped``, a context around the calls.
    """

    def __init__(self, path: str, sql: Mapping[str, str], clock: Clock) -> None:
        """Not open yet. ``sql``: statements by name.

        ``boot``: in which it was opened. ``identity``: which file it is. ``level``:
        that of the last transaction.
        """
        self.path: str = path
        self.mapped: ErrorMapper = ErrorMapper(path)
        self.boot: str = ""
        self.identity: Identities | None = None
        self._sql = sql
        self._clock = clock
        self._db: sqlite3.Connection | None = None
        self.level: SyncLevel = "FULL"

    def open(self, timeout: float) -> None:
        """Open it, make our tables in it if it is new.

        Raises:
            ConfigurationError: not to be opened, or some other application's.
            BackendError: locked by others for ``timeout`` seconds, or damaged.
        """
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

    def close(self) -> None:
        """Close it; one never opened is closed already."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def follow(self) -> None:
        """To the file that has the name now, if it was open once.

        Raises:
            BackendError: it is the same, but without our log; or as ``open``.
        """
        if self.identity is None:
            return
        if self._db is not None:
            now = _identities(self.path)
            if now == self.identity:
                return
            if now[0] == self.identity[0]:
                raise _log_removed(self.path)
        log_event(log, "file_replaced", path=self.path)
        self.open(OPEN_TIMEOUT)

    def run(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """One statement."""
        if self._db is None:
            what = f"{self.path} is not open"
            raise BackendUnavailable(what=what, nothing_done=True)
        return self._db.execute(sql, values)

    def atomically(
        self, work: Callable[[], T], until: float, level: SyncLevel = "FULL"
    ) -> T:
        """All or nothing; whatever fails, the file is not left locked."""
        if level != self.level:
            self._synchronous(level, until)
        self._patiently(self._begin, until)
        try:
            done = work()
            self.run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return done

    def _begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        if self._db is not None and self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _patiently(self, action: Callable[[], object], until: float) -> None:
        retry_while_busy(action, self._clock, until)

    def _synchronous(self, level: SyncLevel, until: float) -> None:
        # Done when it is compiled: one that was compiled before would do nothing.
        if self._db is not None:
            script = f"PRAGMA synchronous={level}"
            self._patiently(partial(self._db.executescript, script), until)
            self.level = level

    def _open(self, boot: BootId, until: float) -> None:
        self._db = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        self._patiently(self._check_owner, until)
        self._patiently(lambda: self.run("PRAGMA journal_mode=WAL"), until)
        self._synchronous("FULL", until)
        if "boots" in self._tables():
            kept = self._kept_boot()
            if kept is not None and boot.joining(kept, self.path) == kept:
                return
        self.atomically(lambda: self._make(boot), until)

    def _make(self, boot: BootId) -> None:
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


def _identities(path: str) -> Identities:
    return identity_of(path), identity_of(path + "-wal")


def _log_removed(path: str) -> BackendUnavailable:
    # What is left of the old log in this process is shared by all its connections to
    # that file: a new one would be no better.
    return BackendUnavailable(
        what=f"the log of {path} was removed: we have lost our lock on the file",
        hint="let nothing in this process open it, not even to copy it; close all of "
        "its Locks, then connect again",
        nothing_done=True,
    )


def _check_place(path: str) -> None:
    """The file's log is beside it: under another path of the file there is another.

    Raises:
        ConfigurationError: the file alone is mounted here.
    """
    where = os.path.realpath(path)
    if mount_of(path).place == where:
        raise ConfigurationError(
            what=f"{where} is mounted on its own, without what SQLite keeps beside it",
            hint="mount the directory, never the file alone",
        )
