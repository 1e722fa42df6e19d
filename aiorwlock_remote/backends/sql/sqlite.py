"""One SQLite connection: opening the file, and steps on it, one transaction a batch.

WAL with ``synchronous=FULL``, so that a fence once handed out survives a power cut.
Whoever has a file open goes on with it when it is removed or replaced, beside those who
open the new one: so it is looked at each time whether it still has its name.

Everything here blocks and belongs to one thread.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from aiorwlock_remote.backends.sql.errors import Mapped
from aiorwlock_remote.backends.sql.patience import patiently
from aiorwlock_remote.backends.sql.schema import APPLICATION_ID, statements_of_sqlite
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.lease import MICROS, micros
from aiorwlock_remote.core.names import Resource, from_row
from aiorwlock_remote.core.record import UNUSED, Record, Seat
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.embedded import boots
from aiorwlock_remote.embedded.alarm import Alarm, Deaf
from aiorwlock_remote.embedded.boots import Boot, of_this_boot
from aiorwlock_remote.embedded.steps import Decoded, outcome
from aiorwlock_remote.errors import (
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
)
from aiorwlock_remote.forgetting import FIRST, PORTION, Key
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Snapshot
from aiorwlock_remote.texts import statements

OPENS_IN = 1.0
"""Seconds for a file that took the place of ours."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.sqlite")

Row = tuple[str | None, str | None, str | None, str | int | None]
File = tuple[int, int]
T = TypeVar("T")


class Connection:
    """A connection to the file at ``path``."""

    def __init__(self, path: str, prefix: str, clock: Clock) -> None:
        """Not open yet; ``prefix`` goes before every resource type."""
        self._path = path
        self._there = Path(path)
        self._mapped = Mapped(path)
        self._prefix = prefix
        self._clock = clock
        self._boot = ""
        self._sql = statements("aiorwlock_remote.backends.sql", "sqlite.sql")
        self._db: sqlite3.Connection | None = None
        self._file: File | None = None
        self._decoded = Decoded()

    def open(self, timeout: float) -> None:
        """Open the file, make our tables in it if it is new.

        Raises:
            ConfigurationError: not to be opened, or some other application's file.
            BackendError: locked by others for ``timeout`` seconds, or damaged.
        """
        self.close()
        until = self._clock.now() + timeout
        boot = boots.this_boot()
        try:
            with self._mapped:
                self._open(boot, until)
        except BaseException:
            self.close()
            raise
        self._boot, self._file = boot.id, _file_at(self._there)

    def close(self) -> None:
        """Close it; a connection never opened is closed already."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def steps(
        self, batch: Iterable[tuple[Resource, Command]], timeout: float
    ) -> list[Step | Exception]:
        """Carry out commands in order, in one transaction; each outcome by itself.

        Raises:
            BackendError: none was carried out.
        """
        until = self._clock.now() + timeout
        self._follow()
        with self._mapped:
            return self._atomically(
                lambda: [self._step(resource, command) for resource, command in batch],
                until,
            )

    def look(self, resource: Resource) -> Snapshot:
        """One resource as it stands."""
        self._follow()
        with self._mapped:
            row = self._run(self._sql["load"], self._key(resource)).fetchone()
            return self._snapshot(resource, row)

    def scan(self) -> Iterator[Snapshot]:
        """All resources with a record or a seat."""
        self._follow()
        with self._mapped:
            for kind, number, *row in self._run(self._sql["scan"]).fetchall():
                if kind.startswith(self._prefix):
                    resource = from_row(kind.removeprefix(self._prefix), number)
                    try:
                        found = self._snapshot(resource, tuple(row))
                    except BadRecord as exc:  # the others are to be seen all the same
                        log_event(
                            log, "bad_record", resource=resource.label, error=str(exc)
                        )
                        continue
                    yield found

    def forget(self, memory: float, after: Key = FIRST) -> Key | None:
        """As ``Connection.forget``, behind ``after``, in the order of the keys."""
        since = int(self._clock.wall() - memory)

        def portion() -> Key | None:
            found = self._run(self._sql["portion"], (*after, PORTION))
            last: Key | None = found.fetchone()
            if last is not None:
                self._run(self._sql["forget"], (*after, *last, since))
            return last

        self._follow()
        with self._mapped:
            return self._atomically(portion, self._clock.now() + 1.0)

    def alarm(self) -> Alarm:
        """SQLite tells nobody."""
        return Deaf()

    def version(self) -> object:
        """Changes whenever another connection has committed something."""
        self._follow()
        with self._mapped:
            version = self._run("PRAGMA data_version").fetchone()[0]
        return self._file, version

    def _step(self, resource: Resource, command: Command) -> Step | BadRecord:
        key = self._key(resource)
        return outcome(resource, lambda: self._carry_out(key, command))

    def _carry_out(self, key: tuple[str, int], command: Command) -> Step:
        row = self._run(self._sql["load"], key).fetchone()
        now, wall = micros(self._clock.now()), micros(self._clock.wall())
        record, seat = self._read(row, now)
        step = transition(record, seat, command, now, wall)
        if step.record is not record and step.record.updated:
            self._save(key, step.record)
        if step.seat is None and seat is not None:
            self._run(self._sql["vacate"], key)
        elif step.seat is not None and (seat is None or step.seat.value != seat.value):
            since = int(step.seat.value.rpartition(",")[2])
            self._run(self._sql["sit"], (*key, step.seat.ticket, since))
        return step

    def _read(self, row: Row, now: int) -> tuple[Record | None, Seat | None]:
        text, boot, ticket, since = row
        seat = None if ticket is None else Seat(f"{ticket},{since}")
        if text is None:
            return None, seat
        return of_this_boot(self._decoded(text), boot or "", self._boot, now), seat

    def _save(self, key: tuple[str, int], record: Record) -> None:
        readers = {
            grant.ticket: grant.since // MICROS
            for grant in record.grants
            if grant.mode is Mode.READ
        }
        text = dumps(record)
        self._decoded.keep(text, record)
        pending = next((p for p in record.queue if p.mode is Mode.WRITE), None)
        values = (
            *key,
            json.dumps(readers) if readers else "{}",
            pending is not None,
            None if pending is None else f"{pending.gate},{pending.since // MICROS}",
            record.updated // MICROS,
            record.created // MICROS,
            self._boot,
            text,
        )
        self._run(self._sql["save"], values)

    def _snapshot(self, resource: Resource, row: Row) -> Snapshot:
        now, wall = micros(self._clock.now()), micros(self._clock.wall())
        record, seat = self._read(row, now)
        return Snapshot(resource, record or UNUSED, seat, now, wall)

    def _key(self, resource: Resource) -> tuple[str, int]:
        kind, number = resource.row
        return self._prefix + kind, number

    def _open(self, boot: Boot, until: float) -> None:
        self._db = sqlite3.connect(
            self._path, timeout=0, isolation_level=None, check_same_thread=False
        )
        self._patiently(self._check_owner, until)
        self._patiently(lambda: self._run("PRAGMA journal_mode=WAL"), until)
        self._run("PRAGMA synchronous=FULL")
        if "boots" in self._tables():
            kept = self._kept_boot()
            if kept is not None and boot.joining(kept, self._path) == kept:
                return
        self._atomically(lambda: self._make(boot), until)

    def _make(self, boot: Boot) -> None:
        for statement in statements_of_sqlite():
            self._run(statement)
        joined = boot.joining(self._kept_boot(), self._path)
        self._run(self._sql["keep_boot"], (joined.id, joined.shift))

    def _check_owner(self) -> None:
        owner = self._run("PRAGMA application_id").fetchone()[0]
        names = self._tables() - {"mutex_locks", "doormans", "boots"}
        if owner != APPLICATION_ID and (owner or names):
            raise ConfigurationError(
                what=f"{self._path} belongs to another application",
                hint="give the locks a file of their own",
            )

    def _tables(self) -> set[str]:
        tables = self._run("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in tables.fetchall()}

    def _kept_boot(self) -> Boot | None:
        row = self._run(self._sql["boot"]).fetchone()
        return None if row is None else Boot(*row)

    def _atomically(self, work: Callable[[], T], until: float) -> T:
        """All or nothing; whatever fails, the file is not left locked."""
        self._patiently(self._begin, until)
        try:
            done = work()
            self._run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return done

    def _begin(self) -> None:
        self._run("BEGIN IMMEDIATE")

    def _patiently(self, action: Callable[[], object], until: float) -> None:
        patiently(action, self._clock, until)

    def _roll_back(self) -> None:
        if self._db is not None and self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _run(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._db is None:
            raise BackendUnavailable(what=f"{self._path} is not open")
        return self._db.execute(sql, values)

    def _follow(self) -> None:
        """To the file that has the name now, if it was open once."""
        if self._boot and not self._stands():
            log_event(log, "file_replaced", path=self._path)
            self.open(OPENS_IN)

    def _stands(self) -> bool:
        return self._db is not None and _file_at(self._there) == self._file


def _file_at(path: Path) -> File | None:
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino
