"""Counters of a client process that survive its SIGKILL."""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from pathlib import Path

OPERATIONS = (
    "acquire",
    "try_acquire",
    "release",
    "extend",
    "downgrade",
    "upgrade",
    "adopt",
    "multi",
    "info",
    "list",
)
"""Public calls that ask the store something: what a soak counts as operations."""
OUTCOMES = (
    "granted",
    "not granted in time",
    "cancelled",
    "lost",
    "store unavailable",
    "uncertain",
    "upgrade conflict",
    "not owner",
)
LOCAL = ("check", "guard", "detach", "statistics")
"""Public calls that ask the store nothing."""

NAMES = (*OPERATIONS, *OUTCOMES, *LOCAL)
_NUMBERS = struct.Struct(f"<{len(NAMES)}q")
_PLACES = {name: place for place, name in enumerate(NAMES)}


class Counts:
    """The counters of one process, in a file that is mapped into its memory.

    One thread at a time may count.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_NUMBERS.size))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._numbers = memoryview(self._mapped).cast("q")

    def add(self, name: str) -> None:
        self._numbers[_PLACES[name]] += 1


def totals(folder: Path) -> Counter[str]:
    """Return the sums of the counters of all processes, dead ones included."""
    found: Counter[str] = Counter()
    for path in folder.glob("*.counts"):
        numbers = _NUMBERS.unpack(path.read_bytes())
        found.update(dict(zip(NAMES, numbers, strict=True)))
    return found


def operations(counts: Counter[str]) -> int:
    return sum(counts[name] for name in OPERATIONS)
