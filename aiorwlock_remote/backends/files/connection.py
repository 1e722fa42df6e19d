"""A process's way to a directory of locks: steps, looks, and what is there at all.

Records that nobody has used for long, and what killed processes left behind.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import sample

from aiorwlock_remote._util.purge import FIRST_KEY, Key
from aiorwlock_remote.backends.files import resource_files
from aiorwlock_remote.backends.files.directory import (
    TEMPORARY,
    FileOptions,
    LockDirectory,
)
from aiorwlock_remote.backends.files.names import RECORD, SEAT, resource_of_name, stem
from aiorwlock_remote.backends.files.record_file import (
    RecordFile,
    StoredRecord,
    remove_file,
)
from aiorwlock_remote.backends.files.resource_files import (
    MutexFile,
    Outcomes,
    ResourceFiles,
)
from aiorwlock_remote.backends.files.system import map_error, open_plain_file
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman
from aiorwlock_remote.core.names import Resource, resource_from_key
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import (
    Batch,
    DecodeCache,
    KeptLocked,
    Seen,
    WakeEvent,
)
from aiorwlock_remote.errors import BackendError, BackendUnavailable, BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Snapshot

MAX_FILES_PER_RUN = 500
"""Files looked at in one go: steps wait for it."""
ORPHAN_AGE = 60.0
"""Seconds after which a file of a step's own belongs to nobody."""


def purge_directory(folder: LockDirectory, memory: float) -> None:
    """Remove records unused for ``memory`` seconds, of resources that nobody holds.

    A record that is kept locked is left for another time.
    """
    names = os.listdir(folder.path)  # noqa: PTH208 - names are what is wanted
    _, wall = folder.clock.times()
    for name in sample(names, min(MAX_FILES_PER_RUN, len(names))):
        path = folder.at(name)
        if name.startswith(TEMPORARY):
            if _age(path, wall) > micros(ORPHAN_AGE):
                remove_file(path)
        elif name.endswith(RECORD) and _age(path, wall) > micros(
            min(memory, ORPHAN_AGE)
        ):
            seat = folder.at(name.removesuffix(RECORD) + SEAT)
            with suppress(BackendUnavailable, BadRecord, FileNotFoundError):
                _purge_record(folder, path, seat, wall - micros(memory))


def _purge_record(folder: LockDirectory, path: str, seat: str, since: int) -> None:
    with folder.locked(path, os.O_RDWR) as descriptor:
        file = RecordFile(descriptor, path, folder)
        kept = file.read()
        if kept is None or (
            resource_files.read_mutex_file(seat) is None
            and _idle(loads(kept.record), since)
        ):
            file.forget()


def _idle(record: Doorman, since: int) -> bool:
    busy = record.grants or record.queue or record.upgrader is not None
    return not busy and record.updated < since


def _age(path: str, wall: int) -> int:
    """Microseconds since it was changed."""
    try:
        return wall - os.stat(path).st_mtime_ns * MICROS // 10**9  # noqa: PTH116
    except FileNotFoundError:
        return 0


UNNAMED_RESOURCE = Resource("?", "?")

log: logging.Logger = logging.getLogger("aiorwlock_remote.files")


class FilesConnection:
    """As ``embedded.connection.Connection``."""

    def __init__(self, options: FileOptions, clock: Clock, gate: str = "") -> None:
        """Not open yet. ``gate``: whose."""
        self._folder = LockDirectory(options, clock, gate)
        self._clock = clock
        self._decoded = DecodeCache()

    def open(self, timeout: float) -> None:
        """See ``LockDirectory.open``."""
        with self._mapping():
            self._folder.open(timeout)

    def close(self) -> None:
        """Close it; one never opened is closed already."""
        self._folder.close()

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        """Carry out commands; those of one resource together, in one write."""
        del timeout  # nothing here is locked as a whole
        of: dict[Resource, list[tuple[int, Command]]] = {}
        for number, (resource, command) in enumerate(batch):
            of.setdefault(resource, []).append((number, command))
        told: dict[int, Step | Exception] = {}
        for resource, asked in of.items():
            commands = [command for _, command in asked]
            outcomes: Outcomes
            try:
                outcomes = self._together(resource, commands)
            except BackendError as exc:  # the others' files are other files
                outcomes = [exc] * len(asked)
            told |= dict(zip((n for n, _ in asked), outcomes, strict=True))
        return [told[number] for number in sorted(told)]

    def look(self, resource: Resource) -> Snapshot:
        """One resource as it stands."""
        with self._mapping():
            return self._look(stem(resource), resource)[1]

    def scan(self, seen: Seen) -> None:
        """As ``embedded.connection.Connection``."""
        with self._mapping():
            names = os.listdir(self._folder.path)  # noqa: PTH208 - names are wanted
        ends = (RECORD, SEAT)
        found = {n.removesuffix(e) for n in names for e in ends if n.endswith(e)}
        kept: KeptLocked | None = None
        for name in sorted(found - seen.keys()):
            try:
                with self._mapping():
                    seen[name] = self._shown(name)
            except KeptLocked as exc:
                kept = exc
            except BadRecord as exc:  # the others are to be seen all the same
                seen[name] = None
                log_event(log, "bad_record", file=name, error=str(exc))
        if kept is not None:
            raise kept

    def forget(self, memory: float, after: Key = FIRST_KEY) -> Key | None:
        """As ``FilesConnection.forget``; once, wherever they are."""
        del after  # names are in no order
        with self._mapping():
            purge_directory(self._folder, memory)
        return None

    def alarm(self) -> WakeEvent:
        """It hears others' steps on this host; other programs ring for nobody."""
        return self._folder.alarm()

    def version(self) -> object:
        """See ``LockDirectory.version``."""
        with self._mapping():
            return self._folder.version()

    def _together(self, resource: Resource, commands: list[Command]) -> Outcomes:
        place = ResourceFiles(self._folder, stem(resource), self._decoded)
        with self._mapping(place):
            return place.steps(resource, resource.key, commands)

    def _shown(self, name: str) -> Snapshot | None:
        """What there is of that name; None: nothing, or nothing of ours."""
        key, seen = self._look(name, UNNAMED_RESOURCE)
        # The name alone may have been cut.
        of = resource_of_name(name) if key is None else resource_from_key(key)
        if of is None or not (seen.record.updated or seen.seat is not None):
            return None
        return Snapshot(of, seen.record, seen.seat, seen.now, seen.wall)

    def _look(self, name: str, resource: Resource) -> tuple[str | None, Snapshot]:
        """Its key, and how it stands; locked only if somebody is changing it."""
        place, clock = (
            ResourceFiles(self._folder, name, self._decoded),
            self._folder.clock,
        )
        kept, stands = self._glance(place)
        now, wall = clock.times()
        record, seat = place.understood(kept, stands, now)
        if (seat and seat.value) != (record and record.seat):
            kept, stands = self._regard(place)
            now, wall = clock.times()
            record, seat = place.understood(kept, stands, now)
        key = None if kept is None else kept.key
        return key, Snapshot(resource, record or UNUSED_DOORMAN, seat, now, wall)

    def _glance(
        self, place: ResourceFiles
    ) -> tuple[StoredRecord | None, MutexFile | None]:
        """Without a lock."""
        try:
            file = open_plain_file(place.record, os.O_RDONLY)
        except FileNotFoundError:
            return None, resource_files.read_mutex_file(place.seat)
        try:
            kept = RecordFile(file, place.record, self._folder).read()
        except BadRecord:  # it may just be written
            return self._regard(place)
        finally:
            os.close(file)
        return kept, resource_files.read_mutex_file(place.seat)

    def _regard(
        self, place: ResourceFiles
    ) -> tuple[StoredRecord | None, MutexFile | None]:
        """While nobody writes."""
        try:
            with self._folder.locked(place.record, os.O_RDONLY) as file:
                kept = RecordFile(file, place.record, self._folder).read()
                return kept, resource_files.read_mutex_file(place.seat)
        except FileNotFoundError:
            return None, resource_files.read_mutex_file(place.seat)

    @contextmanager
    def _mapping(self, place: ResourceFiles | None = None) -> Iterator[None]:
        def untouched() -> bool:
            return place is None or not place.touched

        try:
            yield
        except BackendError as exc:  # some of ours are errors of the system, too
            exc.nothing_done = exc.nothing_done or untouched()
            raise
        except OSError as exc:
            raise map_error(exc, self._folder.path, nothing_done=untouched()) from exc
