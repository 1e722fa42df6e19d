"""A record that is replaced in place, and never half.

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

import os
from hashlib import blake2b

from aiorwlock_remote.backends.files.safe_open import length
from aiorwlock_remote.errors import BackendUnavailable, BadRecord

SLOT = 4096
"""Bytes of the smallest slot; others are this times a power of two."""
LARGEST = SLOT << 12
"""Bytes: of a queue of some 50,000 places. Each step reads all of a file."""
MAGIC = b"rwlock1 "
FAMILY = b"rwlock"
SLOTS = 3
_HEADER = len(MAGIC) + 20 + 1 + 1 + 1 + 10 + 1 + 32 + 1


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
        data = _all(self._file)
        self._size, self._number = len(data) // SLOTS, 0
        self._latest = self._synced = 0
        if len(data) < SLOTS * SLOT:  # whoever made it did not come further than that
            self._size = 0
            return None
        content, synced, damaged = None, 0, False
        for index in range(SLOTS):
            slot = data[index * self._size : (index + 1) * self._size]
            found = _whole(slot)
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
        return _HEADER + len(content) < self._size

    def write(self, content: bytes, *, synced: bool) -> None:
        """In place of older content. ``synced``: the caller is going to sync it."""
        kept = {self._latest, self._synced}
        self._latest = next(index for index in range(SLOTS) if index not in kept)
        self._synced = self._latest if synced else self._synced
        self._number += 1
        slot = _slot(self._number, content, self._size, synced=synced)
        _put(self._file, slot, self._latest)

    def fill(self, content: bytes) -> None:
        """Into a new file, with slots of a size that fits; to be synced.

        Raises:
            BackendUnavailable: there is none.
        """
        if _HEADER + len(content) >= LARGEST:
            raise BackendUnavailable(
                what=f"a record of {len(content)} bytes is too long",
                hint="max_waiters keeps queues short",
                nothing_done=True,
            )
        size = SLOT
        while _HEADER + len(content) >= size:
            size *= 2
        self._size, self._number = size, self._number + 1
        slot = _slot(self._number, content, size, synced=True)
        _put(self._file, slot.ljust(SLOTS * size), 0)

    def follow(self, other: Slots) -> None:
        """Count on from another file's number."""
        self._number = other._number


def _slot(number: int, content: bytes, size: int, *, synced: bool) -> bytes:
    digest, flag = _digest(number, content), b"y" if synced else b"n"
    head = b"%s%020d %s %010d %s\n" % (MAGIC, number, flag, len(content), digest)
    return (head + content).ljust(size - 1) + b"\n"


def _whole(slot: bytes) -> tuple[int, bool, bytes] | None:
    """Its number, whether it is synced, its content; None: blank, or cut off."""
    if not slot.startswith(MAGIC):
        if slot.startswith(FAMILY):
            raise BadRecord(
                what="the stored record is of an unknown version",
                hint="upgrade aiorwlock-remote in every process that uses the store",
            )
        return None
    try:
        number, flag, length, digest = slot[len(MAGIC) : _HEADER].split()
        content = slot[_HEADER : _HEADER + int(length)]
        told = int(number)
    except ValueError:
        return None
    if digest != _digest(told, content):
        return None
    return told, flag == b"y", content


def _digest(number: int, content: bytes) -> bytes:
    return blake2b(b"%d " % number + content, digest_size=16).hexdigest().encode()


def _all(file: int) -> bytes:
    return os.pread(file, length(file, SLOTS * LARGEST, "the stored record"), 0)


def _put(file: int, data: bytes, index: int) -> None:
    at, end = index * len(data), (index + 1) * len(data)
    while at < end:  # a full disk, for one, takes a part
        at += os.pwrite(file, data[at - end :], at)
