"""A file that refuses old fences, for the processes of one machine."""

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

_STORED_FENCE = re.compile(rb"[0-9]{1,16}\n")


@final
class FencedFile:
    """A file that refuses old fences, for the processes of one machine.

    The file itself has the content that is written, so other programs may read it. The
    highest fence that came with an access is stored in ``.<name>.fence``. During an
    access ``.<name>.lock`` is locked by ``flock``, which the kernel ends with the
    process. Do not use it on a network file system.

    All calls block, on the disk and on each other: call them by ``anyio.to_thread``. A
    thread inside ``admitted`` may call ``read`` and ``write`` without waiting for
    itself. A child process that is forked inside ``admitted`` does not have the lock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Use the file at ``path``. Its folder must exist; the file need not.

        Raises:
            ConfigurationError: The path cannot be the name of a file.
        """
        # Resolved, so that a link and its target share one fence (test_files.py).
        self._path = Path(check_path(path)).resolve()
        self._fence = self._path.with_name(f".{self._path.name}.fence")
        self._lock = self._path.with_name(f".{self._path.name}.lock")

    @contextmanager
    def admitted(self, fence: int) -> Iterator[None]:
        """Context in which no higher fence is admitted; refuses an old ``fence``.

        The fence is on the disk when the body begins. Keep the body short: all other
        accesses wait, even while this process is paused. The same thread may enter
        again with an equal fence; other threads wait, so a body that waits for work in
        another thread deadlocks if that work enters too. Run the whole body in one
        thread.

        Raises:
            StaleFence: A higher fence was admitted before.
            WouldDeadlock: This thread is inside already, with a lower fence.
            BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
            BadRecord: The stored fence is damaged.
            OSError: The disk failed.
        """
        check_fence(fence)
        with exclusively(self._lock) as hold:
            self._admit(fence, hold)
            yield

    def read(self, fence: int) -> bytes | None:
        """Return the content of the file, None if it does not exist.

        Lower fences are refused from then on.

        Raises:
            StaleFence: A higher fence was admitted before.
            WouldDeadlock: This thread is inside ``admitted``, with a lower fence.
            BadFence, BadRecord, OSError: Bad argument, damaged fence, disk error.
        """
        with self.admitted(fence):
            try:
                return self._path.read_bytes()
            except FileNotFoundError:
                return None

    def write(self, fence: int, data: bytes) -> None:
        """Replace the file's content as a whole; when this returns, it is on the disk.

        Raises:
            StaleFence: A higher fence was admitted before.
            WouldDeadlock: This thread is inside ``admitted``, with a lower fence.
            BadFence, BadRecord, OSError: Bad argument, damaged fence, disk error.
            ConfigurationError: ``data`` is not ``bytes``.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigurationError(
                what=f"data must be bytes, not {type(data).__name__}",
                hint="text.encode()",
            )
        with self.admitted(fence):
            _replace_file(self._path, data)

    def _admit(self, fence: int, hold: FileLockHold) -> None:
        highest = self._highest() if hold.fence is None else hold.fence
        if fence < highest:
            raise StaleFence(resource=str(self._path), fence=fence, highest=highest)
        if hold.fence is None:
            # An equal fence costs no write (test_on_the_disk_before_it_returns).
            if fence > highest:
                _replace_file(self._fence, f"{fence}\n".encode())
            hold.fence = fence
        elif fence > hold.fence:
            # `admitted` promised the outer body that no higher fence comes before its
            # end, and that end cannot come while this thread waits here.
            raise WouldDeadlock(
                resource=str(self._path), held_mode=f"fence {hold.fence}"
            )

    def _highest(self) -> int:
        try:
            text = self._fence.read_bytes()
        except FileNotFoundError:
            return 0
        fence = int(text) if _STORED_FENCE.fullmatch(text) else MAX_FENCE + 1
        if fence > MAX_FENCE:
            raise BadRecord(
                what=f"{self._fence} does not contain a fence",
                hint="write the fence of the newest grant and a newline into it",
            )
        return fence

    def __repr__(self) -> str:
        return f"<FencedFile {str(self._path)!r}>"


def _replace_file(path: Path, data: bytes) -> None:
    # Writes the data beside the path, then renames, with a sync after each. One
    # temporary name is enough, as the caller has the lock: what a killed process left
    # under that name is overwritten.
    beside = path.with_name(f".{path.name}.new")
    # O_NOFOLLOW: a link laid under that name must not lead the write elsewhere.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    file = open(os.open(beside, flags, 0o666), "wb")  # noqa: PTH123, SIM115 - its flags
    try:
        with file:
            # The new file gets the mode of the old one (test_the_mode_stays).
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:  # a full disk would stay full of it
        beside.unlink(missing_ok=True)
        raise
    # Without it a power cut could undo the rename, and admit a lower fence again.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@final
class FileLockHold:
    """The ``flock`` that one thread holds while it runs bodies of ``admitted``.

    Entries may end in any order: two tasks of one event loop run on one thread, and the
    first to enter need not be the last to leave (test_file_lock.py). ``fence`` is the
    one that was admitted; ``entries`` counts the bodies of ``admitted`` that run.
    """

    def __init__(self, lock: Path) -> None:
        """Lock the file at ``lock``; wait until no other thread or process has it."""
        self.fence: int | None = None
        self.entries = 0
        # A file description of its own each time: `flock` belongs to the description,
        # so threads of one process exclude each other too.
        self._file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        _open_holds.add(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Unlock and close the file; do nothing in a child process forked meanwhile."""
        _open_holds.discard(self)
        # Negative in a child, whose parent goes on holding the lock.
        if self._file < 0:
            return
        try:
            # Closing is not enough: a child that was forked by C code, past our hook,
            # shares the description and would keep it locked.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            os.close(self._file)

    def disown(self) -> None:
        """Close the file in a forked child process; the parent keeps the lock."""
        os.close(self._file)
        self._file = -1


_open_holds: set[FileLockHold] = set()


@final
class _ThreadHolds(threading.local):
    def __init__(self) -> None:
        self.by_path: dict[Path, FileLockHold] = {}


_thread = _ThreadHolds()


@contextmanager
def exclusively(lock: Path) -> Iterator[FileLockHold]:
    """Context that excludes other threads and processes by ``flock`` of a file.

    A thread that is in the context may enter it again at once.
    """
    holds = _thread.by_path  # of the entering thread, whichever thread leaves
    hold = holds.get(lock)
    if hold is None:
        hold = holds[lock] = FileLockHold(lock)
    hold.entries += 1
    try:
        yield hold
    finally:
        hold.entries -= 1
        if not hold.entries:
            # Before the unlock: if another thread leaves, the thread that entered could
            # join a hold that is about to end.
            del holds[lock]
            hold.end()


def _disown_holds_of_parent() -> None:
    _thread.by_path = {}
    for hold in _open_holds:
        hold.disown()
    _open_holds.clear()


os.register_at_fork(after_in_child=_disown_holds_of_parent)
