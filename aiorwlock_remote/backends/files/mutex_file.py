"""The seat: the published mutex as a file, made by ``O_CREAT | O_EXCL`` or ``link``.

Its content is the ticket, its time of change is since when, in whole seconds. Behind
the second, in ours, stand microseconds that are the same for all seats of one boot.
After a power cut a seat may stand there again that was removed before, and it may have
lost its content, but it has that *tag*, and so is known as ours.

``mkdir`` and symbolic links, which other programs make for the same end, are respected
as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path

from aiorwlock_remote.core.doorman import MutexRecord

NANOS = 1_000_000_000
_MAX_BYTES = 65_536
_CLOSED, _FOLDER = "(unreadable)", "(a directory)"


@dataclass(frozen=True, slots=True)
class MutexFile:
    """What is seen of a seat's file: ``ticket,unix seconds``, and the tag."""

    value: str = field(repr=False)
    tag: int


def tag_of(boot: str) -> int:
    """Microseconds."""
    return int.from_bytes(blake2b(boot.encode(), digest_size=8).digest()) % 1_000_000


def read(path: str) -> MutexFile | None:
    """Who sits there; None: nobody."""
    try:
        text, since = _whoever(path)
    except FileNotFoundError:
        return None
    return MutexFile(f"{text},{since // NANOS}", since % NANOS // 1000)


def write(
    path: str, seat: MutexRecord, tag: int, flush: Callable[[int], object]
) -> None:
    """A new file with what a seat has to hold, elsewhere."""
    since = int(seat.value.rpartition(",")[2]) * NANOS + tag * 1000
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    file = os.open(path, flags, 0o666)
    try:
        os.write(file, f"{seat.ticket}\n".encode())
        os.utime(file, ns=(since, since))
        flush(file)
    except BaseException:
        os.unlink(path)  # noqa: PTH108 - one of many, and hot
        raise
    finally:
        os.close(file)


def create_exclusive(new: str, path: str) -> bool:
    """Make the new file the seat; False: somebody sits there.

    By ``link``, so that it is never seen without its content, and nobody who is killed
    leaves one behind that nobody knows.
    """
    try:
        os.link(new, path)
    except FileExistsError:
        # A network file system may ask twice, and answer the second time.
        if os.stat(new).st_nlink != 2:  # noqa: PTH116 - one of many, and hot
            return False
    return True


def remove_mutex(path: str) -> None:
    """Remove it; it may be gone already."""
    try:
        os.unlink(path)  # noqa: PTH108 - one of many, and hot
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # Linux, POSIX
        if not os.path.isdir(path):  # noqa: PTH112
            raise
        os.rmdir(path)  # noqa: PTH106


def _whoever(path: str) -> tuple[str, int]:
    try:
        return _read(path)
    except PermissionError:  # somebody sits there, whoever it is
        return _CLOSED, os.lstat(path).st_mtime_ns
    except OSError as exc:
        if exc.errno not in {errno.ELOOP, errno.EMLINK}:  # BSD says EMLINK
            raise
        return str(Path(path).readlink()), os.lstat(path).st_mtime_ns


def _read(path: str) -> tuple[str, int]:
    # Not to be kept waiting by a pipe, nor led elsewhere.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if stat.S_ISDIR(about.st_mode):
            return _FOLDER, about.st_mtime_ns
        content = os.read(file, _MAX_BYTES)
    finally:
        os.close(file)
    more = f"~{sha256(content).hexdigest()}" if len(content) == _MAX_BYTES else ""
    text = content.decode(errors="backslashreplace").removesuffix("\n")
    return text + more, about.st_mtime_ns
