"""One resource's two files, and steps from what they hold to what they shall hold.

A record and a seat are two files, and a process may be killed between any two system
calls. What counts is the record; a step first writes it, then makes the seat agree,
but removes a seat before. So of a process killed on the way there is left

* a record whose grants have no seat: void, as always when a seat is gone; or
* a record that says which seat it was to replace: that one counts as the new one.

Never a seat that nobody knows, and never a fence that was told and not written. After a
power cut what was written and synced is there, names of files as they were some time
before: seats of another boot are known by their tag.

The seat: the published mutex as a file, made by ``O_CREAT | O_EXCL`` or ``link``.

Its content is the ticket, its time of change is since when, in whole seconds. Behind
the second, in ours, stand microseconds that are the same for all seats of one boot.
After a power cut a seat may stand there again that was removed before, and it may have
lost its content, but it has that *tag*, and so is known as ours.

``mkdir`` and symbolic links, which other programs make for the same end, are respected
as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path

from aiorwlock_remote.backends.files.directory import LockDirectory
from aiorwlock_remote.backends.files.names import RECORD, SEAT
from aiorwlock_remote.backends.files.record_file import (
    RecordFile,
    StoredRecord,
    remove_file,
)
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.embedded.boot_id import as_of_boot, is_another_boot
from aiorwlock_remote.embedded.connection import DecodeCache, step_outcome

NANOS = 1_000_000_000
_MAX_MUTEX_FILE_BYTES = 65_536
_UNREADABLE_TICKET, _DIRECTORY_TICKET = "(unreadable)", "(a directory)"


@dataclass(frozen=True, slots=True)
class MutexFile:
    """What is seen of a seat's file: ``ticket,unix seconds``, and the tag."""

    value: str = field(repr=False)
    tag: int


def tag_of(boot: str) -> int:
    """Microseconds."""
    return int.from_bytes(blake2b(boot.encode(), digest_size=8).digest()) % 1_000_000


def read_mutex_file(path: str) -> MutexFile | None:
    """Who sits there; None: nobody."""
    try:
        text, since = _read_any_entry(path)
    except FileNotFoundError:
        return None
    return MutexFile(f"{text},{since // NANOS}", since % NANOS // 1000)


def write_mutex_file(
    path: str, seat: MutexRecord, tag: int, flush: Callable[[int], object]
) -> None:
    """A new file with what a seat has to hold, elsewhere."""
    since = int(seat.value.rpartition(",")[2]) * NANOS + tag * 1000
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    file = os.open(path, flags, 0o666)
    try:
        os.write(file, f"{seat.ticket}\n".encode())
        os.utime(file, ns=(since, since))
        flush(file)
    except BaseException:
        os.unlink(path)  # noqa: PTH108 - one of many, and hot
        raise
    finally:
        os.close(file)


def link_mutex_file(new: str, path: str) -> bool:
    """Make the new file the seat; False: somebody sits there.

    By ``link``, so that it is never seen without its content, and nobody who is killed
    leaves one behind that nobody knows.
    """
    try:
        os.link(new, path)
    except FileExistsError:
        # A network file system may ask twice, and answer the second time.
        if os.stat(new).st_nlink != 2:  # noqa: PTH116 - one of many, and hot
            return False
    return True


def remove_mutex_file(path: str) -> None:
    """Remove it; it may be gone already."""
    try:
        os.unlink(path)  # noqa: PTH108 - one of many, and hot
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # Linux, POSIX
        if not os.path.isdir(path):  # noqa: PTH112
            raise
        os.rmdir(path)  # noqa: PTH106


def _read_any_entry(path: str) -> tuple[str, int]:
    try:
        return _read_plain_entry(path)
    except PermissionError:  # somebody sits there, whoever it is
        return _UNREADABLE_TICKET, os.lstat(path).st_mtime_ns
    except OSError as exc:
        if exc.errno not in {errno.ELOOP, errno.EMLINK}:  # BSD says EMLINK
            raise
        return str(Path(path).readlink()), os.lstat(path).st_mtime_ns


def _read_plain_entry(path: str) -> tuple[str, int]:
    # Not to be kept waiting by a pipe, nor led elsewhere.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if stat.S_ISDIR(about.st_mode):
            return _DIRECTORY_TICKET, about.st_mtime_ns
        content = os.read(file, _MAX_MUTEX_FILE_BYTES)
    finally:
        os.close(file)
    more = (
        f"~{sha256(content).hexdigest()}"
        if len(content) == _MAX_MUTEX_FILE_BYTES
        else ""
    )
    text = content.decode(errors="backslashreplace").removesuffix("\n")
    return text + more, about.st_mtime_ns


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
        record = as_of_boot(record, kept.boot, self._boot, now)
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
        kept, stands = file.read(), read_mutex_file(self.seat)
        now, wall = self._folder.clock.times()
        before, seat = self.understood(kept, stands, now)
        record, told = before, Outcomes()
        for command in commands:
            step = step_outcome(
                resource,
                lambda r=record, s=seat, c=command: transition(r, s, c, now, wall),  # type: ignore[misc]
            )
            told.append(step)
            if isinstance(step, Step):
                record, seat = step.record, step.seat
        if stands is not None and self._is_old(kept, stands):
            remove_mutex_file(self.seat)
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
            write_mutex_file(new, seat, tag_of(self._boot), self._folder.flush_shared)
        try:
            self.touched = True
            if seat is None and stands is not None:
                remove_mutex_file(self.seat)
            if commit is not None:
                commit()
            if new is None:
                return True
            if stands is None:
                return link_mutex_file(new, self.seat)
            os.rename(new, self.seat)  # noqa: PTH104 - one of many, and hot
            new = None
            return True
        finally:
            if new is not None:
                remove_file(new)
            if self._folder.shared and not same:
                self._folder.flush_names()
            self._folder.wake()

    def _is_old(self, kept: StoredRecord | None, stands: MutexFile) -> bool:
        """Whether the seat is ours, of another boot of this host."""
        return (
            kept is not None
            and is_another_boot(kept.boot, self._boot)
            and stands.tag == tag_of(kept.boot)
        )
