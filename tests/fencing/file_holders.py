"""Who is alone with a file."""

from __future__ import annotations

import fcntl
from pathlib import Path


def free(folder: Path) -> bool:
    """Whether anybody else would get in."""
    with (folder / ".data.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
