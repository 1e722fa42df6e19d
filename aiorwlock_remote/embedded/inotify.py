"""Wakes a thread when another process writes a file, by Linux' inotify.

Calls two functions of the C library by ``ctypes``. Packages for inotify also decode
events, which is not needed here, and start a compiler to find the library.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import ExitStack

from aiorwlock_remote._util.native import new_poll
from aiorwlock_remote.embedded.connection import PlainWakeEvent, WakeEvent

DEBOUNCE = 0.0005
"""Seconds after a look in which no change wakes: many processes may be at work."""
_MODIFY = 0x2


class InotifyWakeEvent:
    """``WakeEvent`` that is also set when another process writes to one file."""

    hears: bool = True

    def __init__(self, path: str, ours: bytes = b"") -> None:
        """Watch the file at ``path``; ignore our writes, which begin with ``ours``.

        If ``ours`` is empty, this process's own writes set the event as well, and the
        file is not opened: closing it would end the locks of this process on it.
        """
        self._ours = ours
        with ExitStack() as undo:
            self._listener = _listener(path)
            undo.callback(os.close, self._listener)
            self._file = -1
            if ours:
                self._file = os.open(path, os.O_RDONLY)
                undo.callback(os.close, self._file)
            self._event = os.eventfd(0)
            undo.callback(os.close, self._event)
            self._opened = undo.pop_all()
        self._quiet, self._both = new_poll(), new_poll()
        self._quiet.register(self._event, select.POLLIN)
        self._both.register(self._event, select.POLLIN)
        self._both.register(self._listener, select.POLLIN)

    def set(self) -> None:
        os.eventfd_write(self._event, 1)

    def wait(self, seconds: float | None, *, quiet: bool = False) -> bool:
        until = time.monotonic() + (seconds or 0.0)
        heard: set[int] = set()
        while not heard - {self._listener}:
            if seconds is None or quiet:
                # What other processes do must not wake this thread.
                found = self._quiet.poll(None if seconds is None else seconds * 1000)
            else:
                left = until - time.monotonic() - DEBOUNCE
                found = self._quiet.poll(DEBOUNCE * 1000)
                found = found or self._both.poll(max(0.0, left) * 1000)
            heard = {file for file, _ in found}
            for file in heard:
                os.read(file, 4096)
            # The worker wakes this process's own waiters. Each thread that runs
            # without need slows the others (test_inotify.py:
            # test_a_step_of_our_own_is_not_heard).
            if not heard or not self._written_by_us():
                break
        return self._listener in heard

    def close(self) -> None:
        self._opened.close()

    def _written_by_us(self) -> bool:
        ours = self._ours
        return bool(ours) and os.pread(self._file, len(ours), 0) == ours


def alarm(path: str, ours: bytes = b"") -> WakeEvent:
    """Return an event that is set when another process writes the file at ``path``.

    Our own writes begin with ``ours``, and do not set it; if that is empty, they do.
    Without inotify only ``set`` sets the event.
    """
    # The system may have no inotify, or no instance of it left (test_inotify.py:
    # test_where_there_is_none).
    try:
        return InotifyWakeEvent(path, ours)
    except (OSError, AttributeError):
        return PlainWakeEvent()


def _listener(path: str) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    listener = _checked(library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    try:
        _checked(library.inotify_add_watch(listener, os.fsencode(path), _MODIFY))
    except OSError:
        os.close(listener)
        raise
    return listener


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
