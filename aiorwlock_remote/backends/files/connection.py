"""A process's way to a directory of locks: steps, looks, and what is there at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from aiorwlock_remote.backends.files import seats
from aiorwlock_remote.backends.files.cleaning import forget
from aiorwlock_remote.backends.files.errors import mapped
from aiorwlock_remote.backends.files.folder import Folder
from aiorwlock_remote.backends.files.names import (
    RECORD,
    SEAT,
    of_name,
    stem,
)
from aiorwlock_remote.backends.files.options import FileOptions
from aiorwlock_remote.backends.files.place import Outcomes, Place
from aiorwlock_remote.backends.files.plain import opened
from aiorwlock_remote.backends.files.records import Kept, RecordFile
from aiorwlock_remote.backends.files.seats import Stands
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.names import Resource, from_key
from aiorwlock_remote.core.record import UNUSED
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.alarm import Alarm
from aiorwlock_remote.embedded.connection import Batch
from aiorwlock_remote.embedded.steps import Decoded
from aiorwlock_remote.errors import BackendError, BadRecord
from aiorwlock_remote.forgetting import FIRST, Key
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Snapshot

LOOKING = 5.0
"""Seconds that a look waits for who is writing."""
NOBODY = Resource("?", "?")

log: logging.Logger = logging.getLogger("aiorwlock_remote.files")


class Connection:
    """As ``embedded.connection.Connection``."""

    def __init__(self, options: FileOptions, clock: Clock, gate: str = "") -> None:
        """Not open yet. ``gate``: whose."""
        self._folder = Folder(options, clock, gate)
        self._clock = clock
        self._decoded = Decoded()

    def open(self, timeout: float) -> None:
        """See ``Folder.open``."""
        with self._mapping():
            self._folder.open(timeout)

    def close(self) -> None:
        """Close it; one never opened is closed already."""
        self._folder.close()

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        """Carry out commands; those of one resource together, in one write."""
        until = self._clock.now() + timeout
        of: dict[Resource, list[tuple[int, Command]]] = {}
        for number, (resource, command) in enumerate(batch):
            of.setdefault(resource, []).append((number, command))
        told: dict[int, Step | Exception] = {}
        for resource, asked in of.items():
            commands = [command for _, command in asked]
            outcomes: Outcomes
            try:
                outcomes = self._together(resource, commands, until)
            except BackendError as exc:  # the others' files are other files
                outcomes = [exc] * len(asked)
            told |= dict(zip((n for n, _ in asked), outcomes, strict=True))
        return [told[number] for number in sorted(told)]

    def look(self, resource: Resource) -> Snapshot:
        """One resource as it stands."""
        with self._mapping():
            return self._look(stem(resource), resource)[1]

    def scan(self) -> Iterator[Snapshot]:
        """All resources with a record or a seat."""
        with self._mapping():
            names = os.listdir(self._folder.path)  # noqa: PTH208 - names are wanted
        ends = (RECORD, SEAT)
        found = {n.removesuffix(e) for n in names for e in ends if n.endswith(e)}
        for name in sorted(found):
            try:
                with self._mapping():
                    key, seen = self._look(name, NOBODY)
            except BadRecord as exc:  # the others are to be seen all the same
                log_event(log, "bad_record", file=name, error=str(exc))
                continue
            whose = of_name(name)
            if key is not None:  # the name alone may have been cut
                whose = from_key(key)
            if whose is None:
                continue
            if seen.record.updated or seen.seat is not None:
                yield Snapshot(whose, seen.record, seen.seat, seen.now, seen.wall)

    def forget(self, memory: float, after: Key = FIRST) -> Key | None:
        """As ``Connection.forget``; once, wherever they are."""
        del after  # names are in no order
        with self._mapping():
            forget(self._folder, memory, self._clock.now() + LOOKING)
        return None

    def alarm(self) -> Alarm:
        """It hears others' steps on this host; other programs ring for nobody."""
        return self._folder.alarm()

    def version(self) -> object:
        """See ``Folder.version``."""
        with self._mapping():
            return self._folder.version()

    def _together(
        self, resource: Resource, commands: list[Command], until: float
    ) -> Outcomes:
        place = Place(self._folder, stem(resource), self._decoded)
        with self._mapping(place):
            return place.steps(resource, resource.key, commands, until)

    def _look(self, name: str, resource: Resource) -> tuple[str | None, Snapshot]:
        """Its key, and how it stands; locked only if somebody is changing it."""
        place, clock = Place(self._folder, name, self._decoded), self._folder.clock
        kept, stands = self._glance(place)
        now, wall = clock.times()
        record, seat = place.understood(kept, stands, now)
        if (seat and seat.value) != (record and record.seat):
            kept, stands = self._regard(place)
            now, wall = clock.times()
            record, seat = place.understood(kept, stands, now)
        key = None if kept is None else kept.key
        return key, Snapshot(resource, record or UNUSED, seat, now, wall)

    def _glance(self, place: Place) -> tuple[Kept | None, Stands | None]:
        """Without a lock."""
        try:
            file = opened(place.record, os.O_RDONLY)
        except FileNotFoundError:
            return None, seats.read(place.seat)
        try:
            kept = RecordFile(file, place.record, self._folder).read()
        except BadRecord:  # it may just be written
            return self._regard(place)
        finally:
            os.close(file)
        return kept, seats.read(place.seat)

    def _regard(self, place: Place) -> tuple[Kept | None, Stands | None]:
        """While nobody writes."""
        until = self._clock.now() + LOOKING
        try:
            with self._folder.locked(place.record, os.O_RDONLY, until) as file:
                kept = RecordFile(file, place.record, self._folder).read()
                return kept, seats.read(place.seat)
        except FileNotFoundError:
            return None, seats.read(place.seat)

    @contextmanager
    def _mapping(self, place: Place | None = None) -> Iterator[None]:
        try:
            yield
        except BackendError:  # some of ours are errors of the system, too
            raise
        except OSError as exc:
            touched = place is not None and place.touched
            raise mapped(exc, self._folder.path, nothing_done=not touched) from exc
