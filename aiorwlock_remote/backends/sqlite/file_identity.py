"""Which file has a name now: SQLite goes on with one that has lost it."""

from __future__ import annotations

import os

Identity = tuple[int, int]


def identity_of(path: str) -> Identity | None:
    """The file's device and number; None: there is none, or it cannot be seen."""
    try:
        there = os.stat(path)  # noqa: PTH116 - at each step
    except OSError:
        return None
    return there.st_dev, there.st_ino
