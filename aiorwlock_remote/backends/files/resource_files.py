"""The two files of one resource: its record, and the published mutex (*mutex file*).

The content of a mutex file is the ticket; its modification time says since when the
mutex is held, in whole seconds. In this library's mutex files the microseconds of that
time are a hash of the boot's id (*tag*). After a power cut a removed mutex file may
exist again, without content; its tag shows that we made it in an earlier boot.

Directories and symbolic links that other programs make as locks, under the name of the
mutex file, are respected as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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

Outcomes = list[Step | Exception]


@dataclass(frozen=True, slots=True)
class MutexFile:
    """Value object: what a published mutex file says.

    ``value``: ``ticket,unix seconds``. ``tag``: hash of the id of the boot in which the
    file was written, see ``tag_of``.
    """

    value: str = field(repr=False)
    tag: int


class ResourceFiles:
    """Carries out commands on the two files of one resource. For one thread.

    A process may be killed between any two system calls. What counts is the record: a
    step first writes the record and then makes the mutex file agree, but removes a
    mutex file before it writes the record.

    Invariants, each with the test that fails without it (in ``tests/backends/files``):

    * After a kill, either the grants of the record have no mutex file and so are void,
      or the record names the mutex file that was to be replaced, which counts as the
      new one. No mutex file is left that no record explains, and no fence is handed out
      before it is written (test_killed_process.py: test_killed_at_every_system_call).
    * After a power cut the synced records exist. Names of files may be as they were
      before: a mutex file of another boot is known by its hash of the boot id, and is
      removed (test_power_cut.py: test_fences_go_on_and_nobody_is_blocked).
    * A mutex file that another program made is never replaced (test_mutex_file.py:
      test_a_foreign_program_that_comes_between).
    """

    def __init__(
        self, directory: LockDirectory, name: str, decoded: DecodeCache
    ) -> None:
        """Use ``<name>.doorman`` and ``<name>.lock``; ``decoded`` caches records."""
        self.record: str = directory.at(name + RECORD)
        self.seat: str = directory.at(name + SEAT)
        # Whether the last steps got so far as to change a file.
        self.touched: bool = False
        self._directory = directory
        self._decoded = decoded
        self._boot = directory.clock.boot

    def steps(self, resource: Resource, commands: Sequence[Command]) -> Outcomes:
        """Carry out commands in order, with one write; return the outcome of each.

        Raises ``KeptLocked`` if another process keeps the record locked,
        ``BackendError`` if a file is damaged, or ``OSError``.
        """
        flags = os.O_RDWR | os.O_CREAT
        with self._directory.locked(self.record, flags) as descriptor:
            file = RecordFile(descriptor, self.record, self._directory)
            try:
                while True:
                    outcomes = self._carry_out(file, resource, commands)
                    if outcomes is not None:
                        return outcomes
            finally:
                if file.empty:
                    file.forget()
                file.close()

    def interpret(
        self, stored: StoredRecord | None, present: MutexFile | None, now: int
    ) -> tuple[Doorman | None, MutexRecord | None]:
        """Return the record and the mutex record that are valid at ``now`` (µs).

        ``stored`` and ``present`` are what the two files say, None if a file does not
        exist. After a kill, a power cut or a reboot the result differs from that.
        """
        seat = None if present is None else MutexRecord(present.value)
        if stored is None:
            return None, seat
        record = self._decoded(stored.record)
        record = as_of_boot(record, stored.boot, self._boot, now)
        # Either the writer was killed after it wrote the record and before it replaced
        # the mutex file, or a power cut brought a removed mutex file back.
        if present is not None and (
            (stored.before == present.value and record.seat is not None)
            or self._is_old(stored, present)
        ):
            seat = None if record.seat is None else MutexRecord(record.seat)
        return record, seat

    def _carry_out(
        self, file: RecordFile, resource: Resource, commands: Sequence[Command]
    ) -> Outcomes | None:
        # Returns None if another program took the mutex meanwhile.
        stored, present = file.read(), read_mutex_file(self.seat)
        now, wall = self._directory.clock.times()
        before, seat = self.interpret(stored, present, now)
        record, outcomes = before, Outcomes()
        apply = partial(transition, semaphore=resource.is_semaphore)
        for command in commands:
            step = step_outcome(
                resource, partial(apply, record, seat, command, now, wall)
            )
            outcomes.append(step)
            if isinstance(step, Step):
                record, seat = step.record, step.seat
        if present is not None and self._is_old(stored, present):
            remove_mutex_file(self.seat)
            self._directory.flush_names()  # or the next power cut would bring it back
            present = None
        if record is not None and (record is before or not record.updated):
            record = None
        last = 0 if before is None else before.last
        saved = self._save(file, resource.key, record, last, present, seat)
        return outcomes if saved else None

    def _save(
        self,
        file: RecordFile,
        key: str,
        record: Doorman | None,
        last: int,
        present: MutexFile | None,
        seat: MutexRecord | None,
    ) -> bool:
        # Writes what has changed; returns False if another program took the mutex.
        # ``record`` is None if it stays as it is, ``last`` the last fence before.
        same = (present and present.value) == (seat and seat.value)
        if record is None and same:
            return True
        new = commit = None
        if record is not None:
            replaced = present.value if present and seat and not same else None
            text = dumps(record)
            self._decoded.keep(text, record)
            # On one host a power cut ends everything but the fence: only a new fence
            # needs to survive it (test_power_cut.py). Other hosts' grants go on.
            synced = self._directory.shared or record.last > last
            stored = StoredRecord(key, self._boot, replaced, text)
            commit = file.prepare(stored, synced=synced)
        if seat is not None and not same:
            new = self._directory.new()
            flush = self._directory.flush_shared
            write_mutex_file(new, seat, tag_of(self._boot), flush)
        try:
            self.touched = True
            # This order is what the invariants rest on (test_killed_process.py:
            # test_killed_at_every_system_call).
            if seat is None and present is not None:
                remove_mutex_file(self.seat)
            if commit is not None:
                commit()
            if new is None:
                return True
            if present is None:
                return link_mutex_file(new, self.seat)
            os.rename(new, self.seat)  # noqa: PTH104 - at each step
            new = None
            return True
        finally:
            if new is not None:
                remove_file(new)
            if self._directory.shared and not same:
                self._directory.flush_names()
            self._directory.wake()

    def _is_old(self, stored: StoredRecord | None, present: MutexFile) -> bool:
        # Ours, as its tag shows, and of another boot of this host. Another program's
        # outlives a boot (test_power_cut.py: test_a_foreign_lock_outlives_a_boot).
        return (
            stored is not None
            and is_another_boot(stored.boot, self._boot)
            and present.tag == tag_of(stored.boot)
        )


def tag_of(boot: str) -> int:
    """Return a hash of a boot id: 0 to 999,999, stored as µs of file times."""
    return int.from_bytes(blake2b(boot.encode(), digest_size=8).digest()) % 1_000_000


def read_mutex_file(path: str) -> MutexFile | None:
    """Return what the mutex file at ``path`` says; None if the file does not exist."""
    try:
        text, since = _read_any_entry(path)
    except FileNotFoundError:
        return None
    return MutexFile(f"{text},{since // NANOS}", since % NANOS // 1000)


def write_mutex_file(
    path: str, seat: MutexRecord, tag: int, flush: Callable[[int], object]
) -> None:
    """Write a mutex file under the temporary name ``path``; call ``flush(descriptor)``.

    The content is the ticket of ``seat``. The modification time says since when the
    mutex is held (seconds), and in its microseconds ``tag``, which identifies the boot.
    """
    since = int(seat.value.rpartition(",")[2]) * NANOS + tag * 1000
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    file = os.open(path, flags, 0o666)
    try:
        os.write(file, f"{seat.ticket}\n".encode())
        os.utime(file, ns=(since, since))
        flush(file)
    except BaseException:
        os.unlink(path)  # noqa: PTH108 - at each step
        raise
    finally:
        os.close(file)


def link_mutex_file(new: str, path: str) -> bool:
    """Give the file ``new`` the name ``path``, too; return False if that exists."""
    # By ``link``, so that the mutex file is never seen without its content, and a
    # process that is killed leaves none whose owner is unknown.
    try:
        os.link(new, path)
    except FileExistsError:
        # A network file system may send the request twice, and report the second
        # answer (test_mutex_file.py: test_an_answer_that_was_lost_on_the_way).
        if os.stat(new).st_nlink != 2:  # noqa: PTH116 - at each step
            return False
    return True


def remove_mutex_file(path: str) -> None:
    """Remove a mutex file, directory or link; do nothing if ``path`` has none."""
    try:
        os.unlink(path)  # noqa: PTH108 - at each step
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # Linux, POSIX
        if not os.path.isdir(path):  # noqa: PTH112
            raise
        os.rmdir(path)  # noqa: PTH106


def _read_any_entry(path: str) -> tuple[str, int]:
    try:
        return _read_plain_entry(path)
    except PermissionError:
        # Its owner is unknown, but the mutex is held (test_mutex_file.py:
        # test_one_that_we_may_not_read).
        return _UNREADABLE_TICKET, os.lstat(path).st_mtime_ns
    except OSError as exc:
        if exc.errno not in {errno.ELOOP, errno.EMLINK}:  # BSD says EMLINK
            raise
        return str(Path(path).readlink()), os.lstat(path).st_mtime_ns


def _read_plain_entry(path: str) -> tuple[str, int]:
    # Follows no link, and does not wait for the writer of a pipe.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if stat.S_ISDIR(about.st_mode):
            return _DIRECTORY_TICKET, about.st_mtime_ns
        content = os.read(file, _MAX_MUTEX_FILE_BYTES)
    finally:
        os.close(file)
    cut = len(content) == _MAX_MUTEX_FILE_BYTES
    more = f"~{sha256(content).hexdigest()}" if cut else ""
    text = content.decode(errors="backslashreplace").removesuffix("\n")
    return text + more, about.st_mtime_ns
