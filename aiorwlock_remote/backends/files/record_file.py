"""The file of a resource's record: replaced in place, and never read half-written.

A file has three parts (*slots*) of equal size. Each says how often the file was written
and has a digest of its content; the latest undamaged slot counts::

    rwlock1 <number> <y if it is synced, else n> <length> <digest>
    <content>
    <blanks up to the end of the slot>

A file is overwritten in place because syncing bytes that have their place on disk takes
a third of the time of a new file with its name, and because network file systems keep
such bytes coherent under a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from aiorwlock_remote.backends.files.directory import LockDirectory, unlock
from aiorwlock_remote.backends.files.system import plain_file_length
from aiorwlock_remote.core.codec import UPGRADE
from aiorwlock_remote.errors import BackendUnavailable, BadRecord

MIN_SLOT_BYTES = 4096
"""Bytes of the smallest slot; the others are this times a power of two."""
MAX_SLOT_BYTES = MIN_SLOT_BYTES << 12
"""Bytes for a queue of some 50,000 entries. Each step reads the whole file."""
MAGIC = b"rwlock1 "
ANY_VERSION_MAGIC = b"rwlock"
SLOT_COUNT = 3
_HEADER_BYTES = len(MAGIC) + 20 + 1 + 1 + 1 + 10 + 1 + 32 + 1


class Slots:
    """The three copies (*slots*) in an open record file, which hold its last writes.

    Invariants, each with the test that fails without it (in
    ``tests/backends/files/test_slots.py``):

    * A write goes neither to the latest slot nor to the latest synced one: the former
      survives if the process is killed at any byte (test_cut_off_at_any_byte), the
      latter even a power cut (test_power_cut_at_any_write).
    * A slot counts only if its digest is right, so a part of a write is never read
      (test_power_cut_at_any_write, test_a_damaged_slot_is_an_error).
    * If a slot was written by a later version of the format, the file is refused, and
      not overwritten (test_of_another_version).
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0  # of one slot
        self.number: int = 0  # how often the file was written
        self._latest = self._synced = 0

    def read(self) -> bytes | None:
        """Return the content that was written last; None if no write was completed."""
        most = SLOT_COUNT * MAX_SLOT_BYTES
        length = plain_file_length(self._file, most, "the stored record")
        data = os.pread(self._file, length, 0)
        self._size, self.number = len(data) // SLOT_COUNT, 0
        self._latest = self._synced = 0
        if len(data) < SLOT_COUNT * MIN_SLOT_BYTES:
            # Its writer was killed before the file had its full length
            # (test_slots.py: test_an_unfinished_slot_is_ignored).
            self._size = 0
            return None
        content, synced, damaged = None, 0, False
        for index in range(SLOT_COUNT):
            slot = data[index * self._size : (index + 1) * self._size]
            found = _decode_slot(slot)
            if found is None:
                damaged = damaged or bool(slot.strip(b"\0 \n"))
                continue
            number, is_synced, found_content = found
            if number > self.number:
                self.number, self._latest, content = number, index, found_content
            if is_synced and number > synced:
                synced, self._synced = number, index
        if content is None and damaged:
            raise BadRecord(what="the stored record is damaged")
        return content

    def fits(self, content: bytes) -> bool:
        return _HEADER_BYTES + len(content) < self._size

    def write(self, content: bytes, *, synced: bool) -> None:
        """Write the content over the oldest copy that is no longer needed.

        The latest copy and the latest synced one stay. ``synced``: True if the caller
        syncs the file afterwards.
        """
        kept = {self._latest, self._synced}
        self._latest = next(index for index in range(SLOT_COUNT) if index not in kept)
        self._synced = self._latest if synced else self._synced
        self.number += 1
        slot = _encode_slot(self.number, content, self._size, synced=synced)
        _write_slot(self._file, slot, self._latest)

    def fill(self, content: bytes, number: int = 0) -> None:
        """Write the first content into a new file; the caller then syncs the file.

        ``number``: how often the older file that this one replaces was written.
        """
        if _HEADER_BYTES + len(content) >= MAX_SLOT_BYTES:
            raise BackendUnavailable(
                what=f"a record of {len(content)} bytes is too long",
                hint="max_waiters keeps queues short",
                nothing_done=True,
            )
        size = MIN_SLOT_BYTES
        while _HEADER_BYTES + len(content) >= size:
            size *= 2
        self._size, self.number = size, number + 1
        slot = _encode_slot(self.number, content, size, synced=True)
        _write_slot(self._file, slot.ljust(SLOT_COUNT * size), 0)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Value object: the content of a record file."""

    # The resource's key; the file's name may be a cut one.
    key: str
    # The boot in which the times of the record were written.
    boot: str
    # The value of the mutex file that the record's own was to replace. If that file
    # still has this value, the writer was killed between the two.
    before: str | None
    # The text of the record.
    record: str


def pack_record(stored: StoredRecord) -> bytes:
    """Return the content for a record file: a line of JSON and one of the record."""
    head = {"key": stored.key, "boot": stored.boot}
    if stored.before is not None:
        head["before"] = stored.before
    return f"{json.dumps(head)}\n{stored.record}\n".encode()


def unpack_record(content: bytes) -> StoredRecord:
    """Return the ``StoredRecord`` in the content of a file, or raise ``BadRecord``."""
    try:
        first, record, _ = content.decode().split("\n")
        head: Any = json.loads(first)
        key, boot, before = head["key"], head["boot"], head.get("before")
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise BadRecord(what=f"the stored record is damaged ({exc!r})") from exc
    if not all(isinstance(text, str) for text in (key, boot, before or "")):
        raise BadRecord(what="the stored record is damaged")
    return StoredRecord(key, boot, before, record)


class RecordFile:
    """The open file of one record, locked by the process that writes.

    Invariants, each with the test that fails without it (in ``tests/backends/files``):

    * Everything that can fail for lack of space is done before the write takes effect:
      after an ``OSError`` of ``prepare`` nothing has changed (test_faults.py:
      test_full_disk).
    * A new file that replaces this one is locked before it gets the name: no other
      process acts between the writes of record and mutex file (test_mutex_file.py:
      test_a_new_record_is_locked_from_the_start).
    * No temporary file is left, unless the process is killed (test_mutex_file.py:
      test_a_seat_that_cannot_be_made_leaves_no_new_record).
    """

    def __init__(self, file: int, path: str, directory: LockDirectory) -> None:
        self._file = file
        self._path = path
        self._directory = directory
        self._slots = Slots(file)
        self._replacing: list[int] = []
        self._temporary: str = ""
        self.empty: bool = False

    def read(self) -> StoredRecord | None:
        """Return the record; None if none was written yet."""
        content = self._slots.read()
        self.empty = content is None
        return None if content is None else unpack_record(content)

    def prepare(self, stored: StoredRecord, *, synced: bool) -> Callable[[], None]:
        """Prepare a write of ``stored``; return the function that carries it out.

        ``synced``: the record must survive a power cut. If this method raises
        ``OSError``, nothing has changed.
        """
        content = pack_record(stored)
        if self._slots.fits(content):
            return lambda: self._overwrite(content, synced=synced)
        self._temporary = self._directory.new()
        file = self._write_temporary(content)
        return lambda: self._replace_by(file)

    def close(self) -> None:
        for file in self._replacing:
            unlock(file)
        if self._temporary:
            remove_file(self._temporary)

    def forget(self) -> None:
        # A process that waits for the lock sees that the file lost its name, and opens
        # the new one (``LockDirectory.locked``).
        remove_file(self._path)

    def _overwrite(self, content: bytes, *, synced: bool) -> None:
        self._slots.write(content, synced=synced)
        if synced:
            self._directory.flush(self._file)
        self.empty = False

    def _write_temporary(self, content: bytes) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        file = os.open(self._temporary, flags, 0o666)
        self._replacing.append(file)
        # Other processes open this file from the rename on: it stays locked until the
        # step is done (test_mutex_file.py: test_a_new_record_is_locked_from_the_start).
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Slots(file).fill(content, self._slots.number)
        self._directory.flush(file)
        return file

    def _replace_by(self, file: int) -> None:
        os.rename(self._temporary, self._path)  # noqa: PTH104 - at each step
        self._temporary, self.empty = "", False
        self._file, self._slots = file, Slots(file)
        self._directory.flush_names()


def remove_file(path: str) -> None:
    """Remove a file; do nothing if it does not exist."""
    try:
        os.unlink(path)  # noqa: PTH108 - at each step
    except FileNotFoundError:
        return


def _encode_slot(number: int, content: bytes, size: int, *, synced: bool) -> bytes:
    digest, flag = _digest(number, content), b"y" if synced else b"n"
    head = b"%s%020d %s %010d %s\n" % (MAGIC, number, flag, len(content), digest)
    return (head + content).ljust(size - 1) + b"\n"


def _decode_slot(slot: bytes) -> tuple[int, bool, bytes] | None:
    # Returns number, synced and content; None if the slot is blank, or was cut off.
    if not slot.startswith(MAGIC):
        if slot.startswith(ANY_VERSION_MAGIC):
            raise BadRecord(
                what="the stored record is of an unknown version",
                hint=UPGRADE,
            )
        return None
    try:
        number, flag, length, digest = slot[len(MAGIC) : _HEADER_BYTES].split()
        content = slot[_HEADER_BYTES : _HEADER_BYTES + int(length)]
        written = int(number)
    except ValueError:
        return None
    if digest != _digest(written, content):
        return None
    return written, flag == b"y", content


def _digest(number: int, content: bytes) -> bytes:
    return blake2b(b"%d " % number + content, digest_size=16).hexdigest().encode()


def _write_slot(file: int, data: bytes, index: int) -> None:
    at, end = index * len(data), (index + 1) * len(data)
    while at < end:  # the system may write a part, for example on a full disk
        at += os.pwrite(file, data[at - end :], at)
