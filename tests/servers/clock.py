"""Servers whose wall clock is off, while everybody else's is right."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.servers.preloading import preloading

SOURCE = Path(__file__).with_name("clock.c")


def off_by(seconds: int, folder: Path) -> list[str]:
    """What goes before a command, so that its clock is ahead by so much (or behind).

    ``folder``: for what has to be compiled.
    """
    if not seconds:
        return []
    return preloading(SOURCE, folder, CLOCK_OFFSET=str(seconds))


class SteppedClock:
    """The wall clock of programs that run: it is set forward and back meanwhile.

    ``before``: what goes before their commands.
    """

    def __init__(self, folder: Path) -> None:
        """``folder``: every user of the programs may enter it."""
        self._file = folder / "clock-steps"
        self.set(0.0)
        self.before = preloading(SOURCE, folder, CLOCK_STEPS=str(self._file))

    def set(self, seconds: float) -> None:
        """Let the clock be ahead of the machine's by so much, or behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<q", round(seconds * 1e9)))
