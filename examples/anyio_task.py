"""anyio: leader election: one of many processes works, the others stand by.

    python examples/anyio_task.py [asyncio|trio]

Start it several times. If you stop the process that works (Ctrl-C), another one goes on
at once; if you kill it (``kill -9``), another one goes on when its lease has run out.
While the store is out of reach, all of them stand by.
"""

from __future__ import annotations

import os
import sys

import anyio

from aiorwlock_remote import Held, connect
from aiorwlock_remote.recipes import Leader

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
ROUNDS = int(os.environ.get("ROUNDS", "20"))


async def work(held: Held) -> None:
    """Work some rounds. If the lock is lost, the next await raises the cancellation."""
    for number in range(1, ROUNDS + 1):
        held.check()  # no I/O; do it before each step that cannot be undone
        print(f"{os.getpid()}: round {number}, fence {held.fence}", flush=True)
        await anyio.sleep(0.05)


def stands_by(_: Leader) -> None:
    """Say that this process leads no longer."""
    print(f"{os.getpid()}: stands by", flush=True)


async def main() -> None:
    """Open the locks and stand by; an error of the work ends the program."""
    async with connect(LOCKS_URL, lease=2) as locks:
        print(f"{os.getpid()}: waits", flush=True)
        await locks.leader("cleanup", on_deposed=stands_by).lead(work)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
