"""A writer that is paused between two accesses: ``python -m tests.faults.sleeper``.

Arguments: URL, register, loop. Tells on stdout what happens; goes on after a line on
stdin.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from aiorwlock_remote import LockLost, connect
from tests.faults.register import Register


async def main(url: str, register: Register) -> None:
    """Hold, be paused, find out."""
    async with connect(url) as locks:
        held = await locks.rwlock("shared", 1).writer.acquire(lease=0.5)
        assert register.access(held.fence) is not None
        print("holding", flush=True)
        sys.stdin.readline()  # the loop is blocked as well, as in a long pause
        started = False

        async def next_step() -> None:
            nonlocal started
            started = True

        try:
            await held.guard(next_step())
        except LockLost as exc:
            print(f"lost {exc.reason}, started={started}", flush=True)
        serial = register.access(held.fence)
        print("refused" if serial is None else "accepted", flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Register(Path(sys.argv[2])), backend=sys.argv[3])
