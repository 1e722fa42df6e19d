"""A process's way to a directory of locks: steps, looks, and what is there at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from aiorwlock_remote._util.purge import FIRST_KEY, Key
from aiorwlock_remote.backends.files import mutex_file
from aiorwlock_remote.backends.files.directory import LockDirectory
from aiorwlock_remote.backends.files.errors import mapped
from aiorwlock_remote.backends.files.mutex_file import MutexFile
from aiorwlock_remote.backends.files.names import RECORD, SEAT, of_name, stem
from aiorwlock_remote.backends.files.options import FileOptions
from aiorwlock_remote.backends.files.purge import forget
from aiorwlock_remote.backends.files.record_file import RecordFile, StoredRecord
from aiorwlock_remote.backends.files.resource_files import Outcomes, ResourceFiles
from aiorwlock_remote.backends.files.safe_open import opened
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, from_key
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import Batch, KeptLocked, Seen
from aiorwlock_remote.embedded.decode_cache import DecodeCache
from aiorwlock_remote.embedded.wake_event import WakeEvent
from aiorwlock_remote.errors import BackendError, BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Snapshot

NO_RESOURCE = Resource("?", "?")

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
            forget(self._folder, memory)
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
        key, seen = self._look(name, NO_RESOURCE)
        # The name alone may have been cut.
        of = of_name(name) if key is None else from_key(key)
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
            file = opened(place.record, os.O_RDONLY)
        except FileNotFoundError:
            return None, mutex_file.read(place.seat)
        try:
            kept = RecordFile(file, place.record, self._folder).read()
        except BadRecord:  # it may just be written
            return self._regard(place)
        finally:
            os.close(file)
        return kept, mutex_file.read(place.seat)

    def _regard(
        self, place: ResourceFiles
    ) -> tuple[StoredRecord | None, MutexFile | None]:
        """While nobody writes."""
        try:
            with self._folder.locked(place.record, os.O_RDONLY) as file:
                kept = RecordFile(file, place.record, self._folder).read()
                return kept, mutex_file.read(place.seat)
        except FileNotFoundError:
            return None, mutex_file.read(place.seat)

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
            raise mapped(exc, self._folder.path, nothing_done=untouched()) from exc
