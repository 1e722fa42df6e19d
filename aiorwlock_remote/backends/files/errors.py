"""What the operating system says → what we raise. The one place where it is mapped."""

from __future__ import annotations

import errno

from aiorwlock_remote.embedded.connection import KeptLocked
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EACCES, errno.EPERM}
_UNABLE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_GONE = {errno.ENOENT, errno.ENOTDIR}


def mapped(exc: OSError, path: str, *, nothing_done: bool) -> BackendError:
    """The error of ours that says what to do. ``path``: of the directory."""
    if exc.errno == errno.EROFS:
        return Unsupported(
            what=f"{path} is on a file system that is mounted read-only",
            hint="a lock is written down: mount it for writing",
            nothing_done=nothing_done,
        )
    if exc.errno in _UNWRITABLE:
        return Unsupported(
            what=f"{path} cannot be written ({exc.strerror})",
            hint="the directory and its files must be writable by this user",
            nothing_done=nothing_done,
        )
    if exc.errno in _UNABLE:
        return Unsupported(
            what=f"the file system of {path} lacks what locks need ({exc.strerror})",
            hint="flock and hard links; on a network file system its lock service",
            nothing_done=nothing_done,
        )
    if exc.errno in _FULL:
        return BackendUnavailable(
            what=f"{path}: no space is left ({exc.strerror})",
            hint="make room, or raise the quota",
            nothing_done=nothing_done,
        )
    if exc.errno in _GONE:
        return BackendUnavailable(
            what=f"{path} is gone", hint="was it removed?", nothing_done=nothing_done
        )
    return BackendUnavailable(
        what=f"{path}: {exc.strerror or exc}", nothing_done=nothing_done
    )


def busy(path: str) -> KeptLocked:
    """Another process keeps the file locked. ``path``: of the file."""
    return KeptLocked(
        what=f"another process keeps {path} locked",
        hint="is one stopped in the middle of a step? lslocks and fuser name it",
        nothing_done=True,
    )
