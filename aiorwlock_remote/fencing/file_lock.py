"""Alone at a file, by ``flock``: among processes, and among the threads of this one."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final


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
        _open.add(self)
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
        _open.discard(self)
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


_open: set[FileLockHold] = set()


@final
class _Here(threading.local):
    def __init__(self) -> None:
        self.stays: dict[Path, FileLockHold] = {}


_here = _Here()


@contextmanager
def exclusive(lock: Path) -> Iterator[FileLockHold]:
    """Nobody else is in; who is in already, by this thread, comes in again at once.

    Raises:
        OSError: the disk's.
    """
    stays = _here.stays  # those of who comes, whoever leaves
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


def _sever_all() -> None:
    _here.stays = {}
    for stay in _open:
        stay.sever()
    _open.clear()


os.register_at_fork(after_in_child=_sever_all)
