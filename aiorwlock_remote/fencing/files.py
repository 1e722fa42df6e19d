"""A file that refuses old fences, for the processes of one machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from aiorwlock_remote.core.paths import check_path
from aiorwlock_remote.errors import (
    BadRecord,
    ConfigurationError,
    StaleFence,
    WouldDeadlock,
)
from aiorwlock_remote.fencing.file_lock import FileLockHold, exclusive
from aiorwlock_remote.fencing.numbers import HIGHEST, check_fence

_FENCE = re.compile(rb"[0-9]{1,16}\n")


@final
class FencedFile:
    """A file, and beside it the highest fence that anybody came with.

    The file itself stays as it is written: other programs may read it. The fence is in
    ``.<name>.fence``; ``.<name>.lock`` is locked by ``flock`` while somebody is at it,
    which ends with the process. Never on a network file system.

    All calls block, on the disk and on each other; call them by ``anyio.to_thread``. A
    thread does not wait for itself: who is ``admitted`` may read and write. A child
    that is forked by who is inside is not inside.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Its folder must be there; the file need not.

        Raises:
            ConfigurationError: no name of a file.
        """
        self._path = Path(check_path(path)).resolve()  # a link to it shares its fence
        self._fence = self._path.with_name(f".{self._path.name}.fence")
        self._lock = self._path.with_name(f".{self._path.name}.lock")

    @contextmanager
    def admitted(self, fence: int) -> Iterator[None]:
        """What is done inside is done before a higher fence comes, or not at all.

        The fence is on the disk when the body begins. Keep the body short: nobody else
        gets in, not even if this process is paused. With an equal fence the thread may
        come again; other threads wait. So what the body does in a thread waits for
        itself: run the body in that thread, as a whole.

        Raises:
            StaleFence: a higher one has been here.
            WouldDeadlock: this thread is inside already, with a lower one.
            BadFence: it is none.
            BadRecord: the fence beside the file cannot be read.
            OSError: the disk's.
        """
        check_fence(fence)
        with exclusive(self._lock) as stay:
            self._admit(fence, stay)
            yield

    def read(self, fence: int) -> bytes | None:
        """What is in the file; None if it is not there.

        Raises:
            StaleFence, WouldDeadlock, BadFence, BadRecord, OSError: as ``admitted``.
        """
        with self.admitted(fence):
            try:
                return self._path.read_bytes()
            except FileNotFoundError:
                return None

    def write(self, fence: int, data: bytes) -> None:
        """Replace it as a whole; on the disk, under its name, when this returns.

        Raises:
            StaleFence, WouldDeadlock, BadFence, BadRecord, OSError: as ``admitted``.
            ConfigurationError: the data are no bytes.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigurationError(
                what=f"data must be bytes, not {type(data).__name__}",
                hint="text.encode()",
            )
        with self.admitted(fence):
            _replace(self._path, data)

    def _admit(self, fence: int, stay: FileLockHold) -> None:
        highest = self._highest() if stay.fence is None else stay.fence
        if fence < highest:
            raise StaleFence(resource=str(self._path), fence=fence, highest=highest)
        if stay.fence is None:
            if fence > highest:
                _replace(self._fence, f"{fence}\n".encode())
            stay.fence = fence
        elif fence > stay.fence:  # it was promised that none comes before it is left
            raise WouldDeadlock(
                resource=str(self._path), held_mode=f"fence {stay.fence}"
            )

    def _highest(self) -> int:
        try:
            text = self._fence.read_bytes()
        except FileNotFoundError:
            return 0
        fence = int(text) if _FENCE.fullmatch(text) else HIGHEST + 1
        if fence > HIGHEST:
            raise BadRecord(what=f"{self._fence} does not hold a fence")
        return fence

    def __repr__(self) -> str:
        return f"<FencedFile {str(self._path)!r}>"


def _replace(path: Path, data: bytes) -> None:
    """Never half of it: beside it first, then renamed, each on the disk.

    One name is enough, as we are alone: what a killed process left is overwritten.
    """
    beside = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = open(os.open(beside, flags, 0o666), "wb")  # noqa: PTH123, SIM115 - its flags
    try:
        with file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:  # the disk may be full of it
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
