"""A resource's record as a file, and what stands in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiorwlock_remote.backends.files.directory import LockDirectory, unlock
from aiorwlock_remote.backends.files.slots import Slots
from aiorwlock_remote.errors import BadRecord


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


def packed(kept: StoredRecord) -> bytes:
    """As content of a file: a line for what is beside the record, and the record."""
    head = {"key": kept.key, "boot": kept.boot}
    if kept.before is not None:
        head["before"] = kept.before
    return f"{json.dumps(head)}\n{kept.record}\n".encode()


def unpacked(content: bytes) -> StoredRecord:
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
        return None if content is None else unpacked(content)

    def prepared(self, kept: StoredRecord, *, synced: bool) -> Callable[[], None]:
        """All that can be done before it counts; what is returned makes it count.

        ``synced``: it has to outlive a power cut.

        Raises:
            OSError: nothing has been changed.
        """
        content = packed(kept)
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
            remove(self._unplaced)

    def forget(self) -> None:
        """Remove it: whoever waits for its lock sees that it is gone, and starts anew.

        Only with the lock in hand.
        """
        remove(self._path)

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


def remove(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)  # noqa: PTH108 - one of many, and hot
    except FileNotFoundError:
        return
