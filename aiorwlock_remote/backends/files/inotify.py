"""Waking a thread when somebody else writes a file, by Linux' inotify.

Two functions of the C library, called by ``ctypes``: what packages add to that is the
decoding of events, which are not wanted here, and a search for the library that starts
a compiler.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import ExitStack

from aiorwlock_remote.embedded.connection import PlainWakeEvent, WakeEvent

DEBOUNCE = 0.0005
"""Seconds after a look in which no change wakes: many processes may be at work."""
_MODIFY = 0x2


class InotifyWakeEvent:
    """An alarm that hears when others write the file."""

    hears: bool = True

    def __init__(self, path: str, ours: bytes) -> None:
        """``ours``: how the file begins if we wrote it.

        Raises:
            OSError: no such file, or no more descriptors.
        """
        self._ours = ours
        with ExitStack() as undo:
            self._listener = _listener(path)
            undo.callback(os.close, self._listener)
            self._file = os.open(path, os.O_RDONLY)
            undo.callback(os.close, self._file)
            self._event = os.eventfd(0)
            undo.callback(os.close, self._event)
            self._opened = undo.pop_all()
        self._quiet, self._both = select.poll(), select.poll()
        self._quiet.register(self._event, select.POLLIN)
        self._both.register(self._event, select.POLLIN)
        self._both.register(self._listener, select.POLLIN)

    def set(self) -> None:
        """As ``WakeEvent``."""
        os.eventfd_write(self._event, 1)

    def wait(self, seconds: float | None) -> None:
        """As ``WakeEvent``."""
        until = time.monotonic() + (seconds or 0.0)
        heard: set[int] = set()
        while not heard - {self._listener}:
            if seconds is None:
                found = self._quiet.poll()
            else:
                left = until - time.monotonic() - DEBOUNCE
                found = self._quiet.poll(DEBOUNCE * 1000)
                found = found or self._both.poll(max(0.0, left) * 1000)
            heard = {file for file, _ in found}
            for file in heard:
                os.read(file, 4096)
            if not heard or not self._by_us():
                return

    def close(self) -> None:
        """Close all."""
        self._opened.close()

    def _by_us(self) -> bool:
        # Our own steps ring our own bell; each thread that runs slows down the others.
        return os.pread(self._file, len(self._ours), 0) == self._ours


def alarm(path: str, ours: bytes) -> WakeEvent:
    """One that hears when others write ``path``, if the system has it and one is left.

    ``ours``: what the file begins with if we wrote it.
    """
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
