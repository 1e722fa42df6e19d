"""A file that refuses old fences, for the processes of one machine.

Alone at a file, by ``flock``: among processes, and among the threads of this one.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from aiorwlock_remote.core.text import check_path
from aiorwlock_remote.errors import (
    BadRecord,
    ConfigurationError,
    StaleFence,
    WouldDeadlock,
)
from aiorwlock_remote.fencing.checks import MAX_FENCE, check_fence


@final
class FileLockHold:
    """A thread's stay, from its first way in to its last way out.

    It lasts as long as anybody is in who came in during it: on an event loop that need
    not be who came first. ``fence`` is for who made it.
    """

    def __init__(self, lock: Path) -> None:
        """Wait for whoever is at it.

        Raises:
            OSError: the disk's.
        """
        self.fence: int | None = None
        self._inside = 0
        # Opened anew each time: threads of one process exclude each other, too.
        self._file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _open_holds.add(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            self.end()
            raise

    def come(self) -> None:
        """One more is in."""
        self._inside += 1

    def leave(self) -> bool:
        """One less; whether it was the last one, with whom the stay is to end."""
        self._inside -= 1
        return not self._inside

    def end(self) -> None:
        """The next one may come."""
        _open_holds.discard(self)
        if self._file < 0:
            return
        try:
            # A child that was forked past our hook may have the file open as well.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            os.close(self._file)

    def sever(self) -> None:
        """This is a forked child: the stay is its parent's, and ends with that."""
        os.close(self._file)
        self._file = -1


_open_holds: set[FileLockHold] = set()


@final
class _ThreadHolds(threading.local):
    def __init__(self) -> None:
        self.stays: dict[Path, FileLockHold] = {}


_thread = _ThreadHolds()


@contextmanager
def exclusively(lock: Path) -> Iterator[FileLockHold]:
    """Nobody else is in; who is in already, by this thread, comes in again at once.

    Raises:
        OSError: the disk's.
    """
    stays = _thread.stays  # those of who comes, whoever leaves
    stay = stays.get(lock)
    if stay is None:
        stay = stays[lock] = FileLockHold(lock)
    stay.come()
    try:
        yield stay
    finally:
        if stay.leave():
            del stays[lock]  # first: if another thread leaves, ours may come meanwhile
            stay.end()


def _drop_holds_of_parent() -> None:
    _thread.stays = {}
    for stay in _open_holds:
        stay.sever()
    _open_holds.clear()


os.register_at_fork(after_in_child=_drop_holds_of_parent)


_STORED_FENCE = re.compile(rb"[0-9]{1,16}\n")


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
        with exclusively(self._lock) as stay:
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
            _replace_file(self._path, data)

    def _admit(self, fence: int, stay: FileLockHold) -> None:
        highest = self._highest() if stay.fence is None else stay.fence
        if fence < highest:
            raise StaleFence(resource=str(self._path), fence=fence, highest=highest)
        if stay.fence is None:
            if fence > highest:
                _replace_file(self._fence, f"{fence}\n".encode())
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
        fence = int(text) if _STORED_FENCE.fullmatch(text) else MAX_FENCE + 1
        if fence > MAX_FENCE:
            raise BadRecord(what=f"{self._fence} does not hold a fence")
        return fence

    def __repr__(self) -> str:
        return f"<FencedFile {str(self._path)!r}>"


def _replace_file(path: Path, data: bytes) -> None:
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
