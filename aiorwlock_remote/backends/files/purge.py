"""Records that nobody has used for long, and what killed processes left behind."""

from __future__ import annotations

import os
from contextlib import suppress
from random import sample

from aiorwlock_remote.backends.files import mutex_file
from aiorwlock_remote.backends.files.directory import TEMPORARY, LockDirectory
from aiorwlock_remote.backends.files.names import RECORD, SEAT
from aiorwlock_remote.backends.files.record_file import RecordFile, remove
from aiorwlock_remote.core.codec import loads
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.lease import MICROS, micros
from aiorwlock_remote.errors import BackendUnavailable, BadRecord

MAX_FILES_PER_RUN = 500
"""Files looked at in one go: steps wait for it."""
ORPHAN_AGE = 60.0
"""Seconds after which a file of a step's own belongs to nobody."""


def forget(folder: LockDirectory, memory: float) -> None:
    """Remove records unused for ``memory`` seconds, of resources that nobody holds.

    A record that is kept locked is left for another time.
    """
    names = os.listdir(folder.path)  # noqa: PTH208 - names are what is wanted
    _, wall = folder.clock.times()
    for name in sample(names, min(MAX_FILES_PER_RUN, len(names))):
        path = folder.at(name)
        if name.startswith(TEMPORARY):
            if _age(path, wall) > micros(ORPHAN_AGE):
                remove(path)
        elif name.endswith(RECORD) and _age(path, wall) > micros(
            min(memory, ORPHAN_AGE)
        ):
            seat = folder.at(name.removesuffix(RECORD) + SEAT)
            with suppress(BackendUnavailable, BadRecord, FileNotFoundError):
                _forget_one(folder, path, seat, wall - micros(memory))


def _forget_one(folder: LockDirectory, path: str, seat: str, since: int) -> None:
    with folder.locked(path, os.O_RDWR) as descriptor:
        file = RecordFile(descriptor, path, folder)
        kept = file.read()
        if kept is None or (
            mutex_file.read(seat) is None and _idle(loads(kept.record), since)
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
