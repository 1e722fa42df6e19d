"""anyio: a job that only one of many processes does, the others stand by.

    python examples/anyio_task.py [asyncio|trio]

Start it several times. Stop the one that works (Ctrl-C): another goes on at once. Kill
it (``kill -9``): another goes on when its lease has run out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from random import uniform
from typing import Any

import anyio

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Held,
    LockLost,
    Locks,
    connect,
)

Work = Callable[[Held], Awaitable[Any]]

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
ROUNDS = int(os.environ.get("ROUNDS", "20"))


async def work(held: Held) -> None:
    """Some rounds of work; losing the lock cancels it at its next await."""
    for number in range(1, ROUNDS + 1):
        held.check()  # no I/O; before anything that cannot be taken back
        print(f"{os.getpid()}: round {number}, fence {held.fence}", flush=True)
        await anyio.sleep(0.05)


async def lead(locks: Locks, work: Work) -> Any:  # noqa: ANN401 - of any work
    """Wait for the lock as long as it takes, then work; again after each outage.

    An outage that is longer than the lease ends the grant, and then fails the request
    for the next one. Whatever else is raised, by the work as well, is the caller's.
    """
    lock = locks.mutex("job", "cleanup")
    while True:
        print(f"{os.getpid()}: waits", flush=True)
        try:
            async with lock.acquire(reason="cleanup") as held:
                return await work(held)
        except (LockLost, BackendUnavailable, AcquireUncertain) as exc:
            print(f"{os.getpid()}: stands by, {exc}", flush=True)
            await anyio.sleep(uniform(0.5, 1.5))


async def main() -> None:
    """Work when it is our turn; whatever fails ends the program."""
    async with connect(LOCKS_URL, lease=2) as locks:
        await lead(locks, work)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
