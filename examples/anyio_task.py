"""anyio: a job that only one of many processes does, the others stand by.

    python examples/anyio_task.py [asyncio|trio]

Start it several times. Stop the one that works (Ctrl-C): another goes on at once. Kill
it (``kill -9``): another goes on when its lease has run out.
"""

from __future__ import annotations

import os
import sys

import anyio

from aiorwlock_remote import Held, LockLost, connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
ROUNDS = int(os.environ.get("ROUNDS", "20"))


async def work(held: Held) -> None:
    """Some rounds of work; losing the lock cancels it at its next await."""
    for number in range(1, ROUNDS + 1):
        held.check()  # no I/O; before anything that cannot be taken back
        print(f"{os.getpid()}: round {number}, fence {held.fence}", flush=True)
        await anyio.sleep(0.05)


async def main() -> None:
    """Wait for the lock as long as it takes, then work."""
    async with connect(LOCKS_URL, lease=2) as locks:
        lock = locks.mutex("job", "cleanup")
        print(f"{os.getpid()}: waits", flush=True)
        try:
            async with lock.acquire(reason="cleanup") as held:
                await work(held)
        except LockLost as exc:
            print(f"{os.getpid()}: stopped, {exc}", flush=True)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
