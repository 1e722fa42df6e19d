"""Calls of the operating system: files opened safely, errors mapped in one place."""

from __future__ import annotations

import errno
import os
import stat

from aiorwlock_remote.embedded.connection import KeptLocked
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    Unsupported,
)

_NOT_PLAIN = {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}
"""Errors of ``open``: a link, by Linux and by BSD; a directory; a socket."""
_NOT_OURS_HINT = "another program put it in the place of a file of the locks: remove it"
_MEANINGS: tuple[tuple[set[int], type[BackendError], str, str], ...] = (
    (
        {errno.EROFS},
        Unsupported,
        "{path} is on a file system that is mounted read-only",
        "a lock is written down: mount it for writing",
    ),
    (
        {errno.EACCES, errno.EPERM},
        Unsupported,
        "{path} cannot be written ({why})",
        "the directory and its files must be writable by this user",
    ),
    (
        {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS},
        Unsupported,
        "the file system of {path} lacks what locks need ({why})",
        "flock and hard links; on a network file system its lock service",
    ),
    (
        {errno.ENOSPC, errno.EDQUOT, errno.EFBIG},
        BackendUnavailable,
        "{path}: no space is left ({why})",
        "make room, or raise the quota",
    ),
    (
        {errno.ENOENT, errno.ENOTDIR},
        BackendUnavailable,
        "{path} does not exist any more",
        "was it removed?",
    ),
)


def open_plain_file(path: str, flags: int) -> int:
    """Open a file and return its descriptor, without following links or blocking.

    Raises ``BadRecord`` for a symbolic link, a directory or a socket, else ``OSError``.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as exc:
        if exc.errno not in _NOT_PLAIN:
            raise
        raise BadRecord(
            what=f"{path} is not a plain file", hint=_NOT_OURS_HINT
        ) from exc


def plain_file_length(file: int, most: int, what: str) -> int:
    """Return the length in bytes of the open file with the descriptor ``file``.

    Raises ``BadRecord``, which calls the file ``what``, if it is no plain file or is
    longer than ``most`` bytes.
    """
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise BadRecord(what=f"{what} is not a plain file", hint=_NOT_OURS_HINT)
    if about.st_size > most:
        raise BadRecord(
            what=f"{what} has {about.st_size} bytes, {most} at most",
            hint=_NOT_OURS_HINT,
        )
    return about.st_size


def read_small_file(path: str, most: int) -> bytes:
    """Return the content of a file of ``most`` bytes at most.

    Raises ``BadRecord`` if it is no plain file, or longer, or an ``OSError``.
    """
    file = open_plain_file(path, os.O_RDONLY)
    try:
        # The length comes first: a large file, or a pipe, must not fill the memory or
        # block the thread (test_safe_open.py: test_in_the_place_of_ours).
        return os.pread(file, plain_file_length(file, most, path), 0)
    finally:
        os.close(file)


def map_error(exc: OSError, path: str, *, nothing_done: bool) -> BackendError:
    """Map an ``OSError`` at ``path``. ``nothing_done``: the step changed nothing."""
    why = exc.strerror or str(exc)
    for codes, kind, what, hint in _MEANINGS:
        if exc.errno in codes:
            text = what.format(path=path, why=why)
            return kind(what=text, hint=hint, nothing_done=nothing_done)
    return BackendUnavailable(what=f"{path}: {why}", nothing_done=nothing_done)


def kept_locked_error(path: str) -> KeptLocked:
    """Return the error for a file at ``path`` that another process keeps locked."""
    return KeptLocked(
        what=f"another process keeps {path} locked",
        hint="is one stopped in the middle of a step? lslocks and fuser name it",
        nothing_done=True,
    )
