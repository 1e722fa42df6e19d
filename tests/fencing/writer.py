"""Writes to a fenced file until killed: ``python -m tests.fencing.writer PATH``."""

from __future__ import annotations

import sys
import time

from aiorwlock_remote import StaleFence
from aiorwlock_remote.fencing.files import FencedFile

LINES = 2000


def main(path: str) -> None:
    """Each content is of one writer, and names the fence it was written with."""
    file = FencedFile(path)
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    while True:
        fence = time.time_ns() // 1000
        try:
            file.write(fence, f"{fence}\n".encode() * LINES)
        except StaleFence:
            continue


if __name__ == "__main__":
    main(sys.argv[1])
