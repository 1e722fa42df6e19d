"""One resource's two files, and steps from what they hold to what they shall hold.

A record and a seat are two files, and a process may be killed between any two system
calls. What counts is the record; a step first writes it, then makes the seat agree,
but removes a seat before. So of a process killed on the way there is left

* a record whose grants have no seat: void, as always when a seat is gone; or
* a record that says which seat it was to replace: that one counts as the new one.

Never a seat that nobody knows, and never a fence that was told and not written. After a
power cut what was written and synced is there, names of files as they were some time
before: seats of another boot are known by their tag.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from aiorwlock_remote.backends.files import mutex_file
from aiorwlock_remote.backends.files.directory import LockDirectory
from aiorwlock_remote.backends.files.mutex_file import MutexFile, tag_of
from aiorwlock_remote.backends.files.names import RECORD, SEAT
from aiorwlock_remote.backends.files.record_file import RecordFile, StoredRecord, remove
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.embedded.boot_id import another_boot, of_this_boot
from aiorwlock_remote.embedded.decode_cache import DecodeCache, outcome

Outcomes = list[Step | Exception]


class ResourceFiles:
    """Where a resource's files are. For one thread."""

    def __init__(self, folder: LockDirectory, name: str, decoded: DecodeCache) -> None:
        """``name``: of both files, without their endings."""
        self.record: str = folder.at(name + RECORD)
        self.seat: str = folder.at(name + SEAT)
        self.touched: bool = False
        """Whether the last steps got so far as to change something."""
        self._folder = folder
        self._decoded = decoded
        self._boot = folder.clock.boot

    def steps(
        self, resource: Resource, key: str, commands: Sequence[Command]
    ) -> Outcomes:
        """Carry out all of them in one write.

        Raises:
            KeptLocked: by another process.
            BackendError: not to be used.
            OSError: whatever else the system says.
        """
        flags = os.O_RDWR | os.O_CREAT
        with self._folder.locked(self.record, flags) as descriptor:
            file = RecordFile(descriptor, self.record, self._folder)
            try:
                while True:
                    told = self._carried_out(file, resource, key, commands)
                    if told is not None:
                        return told
            finally:
                if file.empty:
                    file.forget()
                file.close()

    def understood(
        self, kept: StoredRecord | None, stands: MutexFile | None, now: int
    ) -> tuple[Doorman | None, MutexRecord | None]:
        """The record and the seat as they count."""
        seat = None if stands is None else MutexRecord(stands.value)
        if kept is None:
            return None, seat
        record = self._decoded(kept.record)
        record = of_this_boot(record, kept.boot, self._boot, now)
        if stands is not None and (
            (kept.before == stands.value and record.seat is not None)
            or self._is_old(kept, stands)
        ):
            seat = None if record.seat is None else MutexRecord(record.seat)
        return record, seat

    def _carried_out(
        self,
        file: RecordFile,
        resource: Resource,
        key: str,
        commands: Sequence[Command],
    ) -> Outcomes | None:
        """None: a foreign program took the seat meanwhile."""
        kept, stands = file.read(), mutex_file.read(self.seat)
        now, wall = self._folder.clock.times()
        before, seat = self.understood(kept, stands, now)
        record, told = before, Outcomes()
        for command in commands:
            step = outcome(
                resource,
                lambda r=record, s=seat, c=command: transition(r, s, c, now, wall),  # type: ignore[misc]
            )
            told.append(step)
            if isinstance(step, Step):
                record, seat = step.record, step.seat
        if stands is not None and self._is_old(kept, stands):
            mutex_file.remove_mutex(self.seat)
            self._folder.flush_names()  # or the next power cut would bring it back
            stands = None
        if record is not None and (record is before or not record.updated):
            record = None
        last = 0 if before is None else before.last
        return told if self._save(file, key, record, last, stands, seat) else None

    def _save(
        self,
        file: RecordFile,
        key: str,
        record: Doorman | None,
        last: int,
        stands: MutexFile | None,
        seat: MutexRecord | None,
    ) -> bool:
        """Write the record, unless None; from the seat that stands to this one.

        ``last``: the fence before.
        """
        same = (stands and stands.value) == (seat and seat.value)
        if record is None and same:
            return True
        new = commit = None
        if record is not None:
            replaced = stands.value if stands and seat and not same else None
            text = dumps(record)
            self._decoded.keep(text, record)
            # On one host a power cut ends all but the fence.
            synced = self._folder.shared or record.last > last
            kept = StoredRecord(key, self._boot, replaced, text)
            commit = file.prepared(kept, synced=synced)
        if seat is not None and not same:
            new = self._folder.new()
            mutex_file.write(new, seat, tag_of(self._boot), self._folder.flush_shared)
        try:
            self.touched = True
            if seat is None and stands is not None:
                mutex_file.remove_mutex(self.seat)
            if commit is not None:
                commit()
            if new is None:
                return True
            if stands is None:
                return mutex_file.create_exclusive(new, self.seat)
            os.rename(new, self.seat)  # noqa: PTH104 - one of many, and hot
            new = None
            return True
        finally:
            if new is not None:
                remove(new)
            if self._folder.shared and not same:
                self._folder.flush_names()
            self._folder.wake()

    def _is_old(self, kept: StoredRecord | None, stands: MutexFile) -> bool:
        """Whether the seat is ours, of another boot of this host."""
        return (
            kept is not None
            and another_boot(kept.boot, self._boot)
            and stands.tag == tag_of(kept.boot)
        )
