"""One SQLite connection for steps: one transaction per batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from functools import partial

from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.sqlite.sqlite_file import (
    FenceNeedsSync,
    SqliteFile,
    SyncLevel,
    refuse_unsynced_fence,
    sync_level_for,
)
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.embedded.boot_id import as_of_boot
from aiorwlock_remote.embedded.connection import (
    DecodeCache,
    PlainWakeEvent,
    Seen,
    WakeEvent,
    step_outcome,
)
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Snapshot

log: logging.Logger = logging.getLogger("aiorwlock_remote.sqlite")

Row = tuple[str | None, str | None, str | None, str | int | None]
"""Record, boot, ticket and ``acquired_at`` (unix seconds) of one resource."""


class SqliteConnection:
    """``LocalConnection`` to an SQLite file; each batch of steps is one transaction."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._sql = load_statements("aiorwlock_remote.backends.sqlite", "sqlite.sql")
        self._file = SqliteFile(path, self._sql, clock)
        self._run = self._file.run
        self._decoded = DecodeCache()

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
                # grant for held whose release was lost (test_sqlite_power.py:
                # test_where_the_next_boot_would_not_know_all_is_synced).
                level = "FULL"
            try:
                return self._carry_out_all(asked, level, until)
            except FenceNeedsSync:
                return self._carry_out_all(asked, "FULL", until)

    def look(self, resource: Resource) -> Snapshot:
        self._file.follow()
        with self._file.mapped:
            row = self._run(self._sql["load"], resource.row).fetchone()
            return self._snapshot(resource, row)

    def scan(self, seen: Seen) -> None:
        self._file.follow()
        with self._file.mapped:
            for kind, number, *row in self._run(self._sql["scan"]).fetchall():
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
            return self._file.atomically(portion, self._clock.now() + 1.0)

    def alarm(self) -> WakeEvent:
        return PlainWakeEvent()

    def version(self) -> object:
        self._file.follow()
        with self._file.mapped:
            version = self._run("PRAGMA data_version").fetchone()[0]
        return self._file.identity, version

    def _carry_out_all(
        self, batch: list[tuple[Resource, Command]], level: SyncLevel, until: float
    ) -> list[Step | Exception]:
        return self._file.atomically(
            lambda: [
                step_outcome(resource, partial(self._step, resource.row, command))
                for resource, command in batch
            ],
            until,
            level,
        )

    def _step(self, key: tuple[str, int], command: Command) -> Step:
        row = self._run(self._sql["load"], key).fetchone()
        now, wall = micros(self._clock.now()), micros(self._clock.wall())
        record, seat = self._read(row, now)
        step = transition(record, seat, command, now, wall)
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
