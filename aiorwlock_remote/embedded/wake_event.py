"""What a watcher's thread sleeps on."""

from __future__ import annotations

import threading
from typing import Protocol


class WakeEvent(Protocol):
    """Waited for by one thread."""

    @property
    def hears(self) -> bool:
        """Whether changes wake as well, so that one need not look often."""

    def set(self) -> None:
        """Wake the one that waits, or that comes to wait; from any thread."""

    def wait(self, seconds: float | None) -> None:
        """Until woken or so long; None: until woken by ``set``, by no change."""

    def close(self) -> None:
        """It is not waited for any more."""


class PlainWakeEvent:
    """An alarm that hears no changes."""

    hears: bool = False

    def __init__(self) -> None:
        """Not set."""
        self._event = threading.Event()

    def set(self) -> None:
        """As ``WakeEvent``."""
        self._event.set()

    def wait(self, seconds: float | None) -> None:
        """As ``WakeEvent``."""
        self._event.wait(seconds)
        self._event.clear()

    def close(self) -> None:
        """Nothing was opened."""
