"""Files of ours are opened as such: not led elsewhere by a link, nor kept waiting."""

from __future__ import annotations

import errno
import os
import stat

from aiorwlock_remote.errors import BadRecord

_HINT = "somebody put it in the place of a file of ours: remove it"
_OTHERS = {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}
"""A link, by Linux and by BSD; a directory; a socket."""


def opened(path: str, flags: int) -> int:
    """Its descriptor. What it is, is seen by ``length``.

    Raises:
        BadRecord: a symbolic link is there, a directory or a socket.
        OSError: whatever else the system says.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as exc:
        if exc.errno not in _OTHERS:
            raise
        raise BadRecord(what=f"{path} is not a plain file", hint=_HINT) from exc


def length(file: int, most: int, what: str) -> int:
    """How long an open file is; ``what``: for messages.

    Raises:
        BadRecord: a pipe, a device, …, or longer than ``most``.
    """
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise BadRecord(what=f"{what} is not a plain file", hint=_HINT)
    if about.st_size > most:
        raise BadRecord(
            what=f"{what} has {about.st_size} bytes, {most} at most", hint=_HINT
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
        return os.pread(file, length(file, most, path), 0)
    finally:
        os.close(file)
