"""A resource's record as a file, and what stands in it.

A record that is replaced in place, and never half.

A file has three slots of equal size. Each says how often the file was written and has a
digest of its content; the latest that is whole counts::

    rwlock1 <number> <y if it is synced, else n> <length> <digest>
    <content>
    <blanks up to the end of the slot>

What need not outlive a power cut is not synced. A write goes neither to the latest slot
nor to the latest that is synced: whoever is killed leaves the one, a power cut at least
the other.

In place, because to sync bytes that have their place on disk takes a third of what a
new file and its name take, and because it is what network file systems keep coherent
under a lock.
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
from aiorwlock_remote.errors import BackendUnavailable, BadRecord

MIN_SLOT_BYTES = 4096
"""Bytes of the smallest slot; others are this times a power of two."""
MAX_SLOT_BYTES = MIN_SLOT_BYTES << 12
"""Bytes: of a queue of some 50,000 places. Each step reads all of a file."""
MAGIC = b"rwlock1 "
ANY_VERSION_MAGIC = b"rwlock"
SLOT_COUNT = 3
_HEADER_BYTES = len(MAGIC) + 20 + 1 + 1 + 1 + 10 + 1 + 32 + 1


class Slots:
    """An open file. Whoever writes has it locked."""

    def __init__(self, file: int) -> None:
        """``file``: its descriptor."""
        self._file = file
        self._size = 0  # of a slot
        self._number = 0
        self._latest = self._synced = 0

    def read(self) -> bytes | None:
        """The content; None: nothing was ever written.

        Raises:
            BadRecord: it is damaged, or of a later version of this library.
        """
        data = _read_all_slots(self._file)
        self._size, self._number = len(data) // SLOT_COUNT, 0
        self._latest = self._synced = 0
        if (
            len(data) < SLOT_COUNT * MIN_SLOT_BYTES
        ):  # whoever made it did not come further than that
            self._size = 0
            return None
        content, synced, damaged = None, 0, False
        for index in range(SLOT_COUNT):
            slot = data[index * self._size : (index + 1) * self._size]
            found = _decode_slot(slot)
            if found is None:
                damaged = damaged or bool(slot.strip(b"\0 \n"))
                continue
            number, is_synced, told = found
            if number > self._number:
                self._number, self._latest, content = number, index, told
            if is_synced and number > synced:
                synced, self._synced = number, index
        if content is None and damaged:
            raise BadRecord(what="the stored record is damaged")
        return content

    def fits(self, content: bytes) -> bool:
        """Whether it can be written in place. ``read`` comes before."""
        return _HEADER_BYTES + len(content) < self._size

    def write(self, content: bytes, *, synced: bool) -> None:
        """In place of older content. ``synced``: the caller is going to sync it."""
        kept = {self._latest, self._synced}
        self._latest = next(index for index in range(SLOT_COUNT) if index not in kept)
        self._synced = self._latest if synced else self._synced
        self._number += 1
        slot = _encode_slot(self._number, content, self._size, synced=synced)
        _write_slot(self._file, slot, self._latest)

    def fill(self, content: bytes) -> None:
        """Into a new file, with slots of a size that fits; to be synced.

        Raises:
            BackendUnavailable: there is none.
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
        self._size, self._number = size, self._number + 1
        slot = _encode_slot(self._number, content, size, synced=True)
        _write_slot(self._file, slot.ljust(SLOT_COUNT * size), 0)

    def follow(self, other: Slots) -> None:
        """Count on from another file's number."""
        self._number = other._number


def _encode_slot(number: int, content: bytes, size: int, *, synced: bool) -> bytes:
    digest, flag = _digest(number, content), b"y" if synced else b"n"
    head = b"%s%020d %s %010d %s\n" % (MAGIC, number, flag, len(content), digest)
    return (head + content).ljust(size - 1) + b"\n"


def _decode_slot(slot: bytes) -> tuple[int, bool, bytes] | None:
    """Its number, whether it is synced, its content; None: blank, or cut off."""
    if not slot.startswith(MAGIC):
        if slot.startswith(ANY_VERSION_MAGIC):
            raise BadRecord(
                what="the stored record is of an unknown version",
                hint="upgrade aiorwlock-remote in every process that uses the store",
            )
        return None
    try:
        number, flag, length, digest = slot[len(MAGIC) : _HEADER_BYTES].split()
        content = slot[_HEADER_BYTES : _HEADER_BYTES + int(length)]
        told = int(number)
    except ValueError:
        return None
    if digest != _digest(told, content):
        return None
    return told, flag == b"y", content


def _digest(number: int, content: bytes) -> bytes:
    return blake2b(b"%d " % number + content, digest_size=16).hexdigest().encode()


def _read_all_slots(file: int) -> bytes:
    return os.pread(
        file,
        plain_file_length(file, SLOT_COUNT * MAX_SLOT_BYTES, "the stored record"),
        0,
    )


def _write_slot(file: int, data: bytes, index: int) -> None:
    at, end = index * len(data), (index + 1) * len(data)
    while at < end:  # a full disk, for one, takes a part
        at += os.pwrite(file, data[at - end :], at)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What a record's file holds beside the record's own text.

    ``key``: whose it is, as the file's name may be cut. ``boot``: when its times are
    of. ``before``: the seat that the record's own was to replace; if it still stands,
    its writer was killed between the two.
    """

    key: str
    boot: str
    before: str | None
    record: str


def pack_record(kept: StoredRecord) -> bytes:
    """As content of a file: a line for what is beside the record, and the record."""
    head = {"key": kept.key, "boot": kept.boot}
    if kept.before is not None:
        head["before"] = kept.before
    return f"{json.dumps(head)}\n{kept.record}\n".encode()


def unpack_record(content: bytes) -> StoredRecord:
    """The inverse.

    Raises:
        BadRecord: it is nothing of ours.
    """
    try:
        first, record, _ = content.decode().split("\n")
        head: Any = json.loads(first)
        key, boot, before = head["key"], head["boot"], head.get("before")
    except (ValueError, KeyError, TypeError) as exc:
        raise BadRecord(what=f"the stored record is damaged ({exc!r})") from exc
    if not all(isinstance(text, str) for text in (key, boot, before or "")):
        raise BadRecord(what="the stored record is damaged")
    return StoredRecord(key, boot, before, record)


class RecordFile:
    """Open, and locked by whoever writes."""

    def __init__(self, file: int, path: str, folder: LockDirectory) -> None:
        """``file``: its descriptor, which stays the caller's to close."""
        self._file = file
        self._path = path
        self._folder = folder
        self._slots = Slots(file)
        self._replacing: list[int] = []
        self._unplaced: str = ""
        self.empty: bool = False

    def read(self) -> StoredRecord | None:
        """What it holds; None: nothing yet.

        Raises:
            BadRecord: damaged, or of a later version of this library.
        """
        content = self._slots.read()
        self.empty = content is None
        return None if content is None else unpack_record(content)

    def prepared(self, kept: StoredRecord, *, synced: bool) -> Callable[[], None]:
        """All that can be done before it counts; what is returned makes it count.

        ``synced``: it has to outlive a power cut.

        Raises:
            OSError: nothing has been changed.
        """
        content = pack_record(kept)
        if self._slots.fits(content):
            return lambda: self._overwrite(content, synced=synced)
        self._unplaced = self._folder.new()
        made = self._fill(self._unplaced, content)
        return lambda: self._put_in_place(made)

    def close(self) -> None:
        """Let go of files that were to take this one's place, or did."""
        for file in self._replacing:
            unlock(file)
        if self._unplaced:
            remove_file(self._unplaced)

    def forget(self) -> None:
        """Remove it: whoever waits for its lock sees that it is gone, and starts anew.

        Only with the lock in hand.
        """
        remove_file(self._path)

    def _overwrite(self, content: bytes, *, synced: bool) -> None:
        self._slots.write(content, synced=synced)
        if synced:
            self._folder.flush(self._file)
        self.empty = False

    def _fill(self, new: str, content: bytes) -> int:
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._replacing.append(file)
        # Ours until the step is done: it is where others look from the rename on.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        slots = Slots(file)
        slots.follow(self._slots)
        slots.fill(content)
        self._folder.flush(file)
        return file

    def _put_in_place(self, made: int) -> None:
        """From now on it is what is read and written."""
        os.rename(self._unplaced, self._path)  # noqa: PTH104 - one of many, and hot
        self._unplaced, self.empty = "", False
        self._file, self._slots = made, Slots(made)
        self._folder.flush_names()


def remove_file(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)  # noqa: PTH108 - one of many, and hot
    except FileNotFoundError:
        return
