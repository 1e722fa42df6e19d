"""anyio: leader election: one of many processes works, the others stand by.

    python examples/anyio_task.py [asyncio|trio]

Start it several times. If you stop the process that works (Ctrl-C), another one goes on
at once; if you kill it (``kill -9``), another one goes on when its lease has run out.
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
    """Work some rounds. If the lock is lost, the next await raises the cancellation."""
    for number in range(1, ROUNDS + 1):
        held.check()  # no I/O; do it before each step that cannot be undone
        print(f"{os.getpid()}: round {number}, fence {held.fence}", flush=True)
        await anyio.sleep(0.05)


async def lead(locks: Locks, work: Work) -> Any:  # noqa: ANN401 - of any work
    """Wait for the lock, then work; begin again after each outage of the store.

    An outage that is longer than the lease ends the grant, and then the request for the
    next one fails. All other errors, also of the work, are raised.
    """
    lock = locks.mutex("job", "cleanup")
    while True:
        print(f"{os.getpid()}: waits", flush=True)
        try:
            # No timeout: a process that stands by waits for as long as another works.
            async with lock.acquire(reason="cleanup") as held:
                return await work(held)
        except (LockLost, BackendUnavailable, AcquireUncertain) as exc:
            print(f"{os.getpid()}: stands by, {exc}", flush=True)
            # At random times, so that the processes do not all come back at once.
            await anyio.sleep(uniform(0.5, 1.5))


async def main() -> None:
    """Open the locks and stand by; an error of the work ends the program."""
    async with connect(LOCKS_URL, lease=2) as locks:
        await lead(locks, work)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
