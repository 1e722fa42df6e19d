"""Files of ours are opened as such: not led elsewhere by a link, nor kept waiting."""

from __future__ import annotations

import errno
import os
import stat

from aiorwlock_remote.errors import BadRecord


def opened(path: str, flags: int) -> int:
    """Its descriptor. What it is, is seen by ``size``.

    Raises:
        BadRecord: a symbolic link is there.
        OSError: whatever else the system says.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as exc:
        if exc.errno not in {errno.ELOOP, errno.EMLINK}:  # BSD says EMLINK
            raise
        raise BadRecord(
            what=f"{path} is a symbolic link",
            hint="somebody put it in the place of a file of ours: remove it",
        ) from None


def size(file: int, most: int) -> int:
    """How long an open file is.

    Raises:
        BadRecord: a pipe, a device, …, or longer than ``most``.
    """
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise BadRecord(what="it is not a plain file", hint="it is none of ours")
    if about.st_size > most:
        raise BadRecord(
            what=f"a file of {about.st_size} bytes, of {most} at most",
            hint="it is none of ours",
        )
    return about.st_size


def content(path: str, most: int) -> bytes:
    """All of a small file.

    Raises:
        BadRecord: it is none.
        OSError: whatever else the system says.
    """
    file = opened(path, os.O_RDONLY)
    try:
        return os.pread(file, size(file, most), 0)
    finally:
        os.close(file)
