"""A counter in a file that two at a time would spoil, and a process that counts.

``python -m tests.faults.counter URL FILE SECONDS LOOP``: tasks count up under a
mutex or as writers, others look twice as readers. Prints as JSON how often, and how
often it changed under a reader.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import time
from pathlib import Path

import anyio

from aiorwlock_remote import Locks, connect

_NUMBER = struct.Struct("<q")
LEAST = 10
"""How often each process counts, and looks, at least."""


class Counter:
    """Reads and writes; keeping others away is somebody else's business."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def read(self) -> int:
        number: int
        (number,) = _NUMBER.unpack(
            os.pread(self._file, _NUMBER.size, 0) or bytes(_NUMBER.size)
        )
        return number

    def write(self, number: int) -> None:
        os.pwrite(self._file, _NUMBER.pack(number), 0)

    def close(self) -> None:
        os.close(self._file)


async def main(url: str, path: Path, seconds: float) -> None:
    """Count for so long, and on a machine that stands still until it has been done."""
    counter = Counter(path)
    counts = {"writes": 0, "reads": 0, "torn": 0}
    end = time.monotonic() + seconds

    def goes_on(what: str) -> bool:
        return time.monotonic() < end or counts[what] < LEAST

    async def write(locks: Locks) -> None:
        sides = locks.mutex("foobar", 123), locks.rwlock("foobar", 123).writer
        while goes_on("writes"):
            async with random.choice(sides):
                seen = counter.read()
                await anyio.sleep(random.uniform(0, 0.003))
                counter.write(seen + 1)
                counts["writes"] += 1

    async def read(locks: Locks) -> None:
        while goes_on("reads"):
            async with locks.rwlock("foobar", 123).reader:
                seen = counter.read()
                await anyio.sleep(random.uniform(0, 0.003))
                counts["torn"] += counter.read() != seen
                counts["reads"] += 1

    async with connect(url) as locks, anyio.create_task_group() as group:
        for work in (write, write, read, read):
            group.start_soon(work, locks)
    counter.close()
    print(json.dumps(counts))


if __name__ == "__main__":
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), backend=sys.argv[4]
    )
