"""Semaphore: at most two calls of an API at a time, from all processes together.

    python examples/api_calls.py

Start it several times, also on several machines with one ``LOCKS_URL``: the limit is
that of all of them.
"""

from __future__ import annotations

import asyncio
import os

from aiorwlock_remote import connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
LIMIT = 2


async def main() -> None:
    """Call six times."""
    async with connect(LOCKS_URL) as locks:

        @locks.semaphore("api", "payments", limit=LIMIT)
        async def call(number: int) -> None:
            print(f"{os.getpid()}: call {number} begins", flush=True)
            await asyncio.sleep(0.05)
            print(f"{os.getpid()}: call {number} ends", flush=True)

        await asyncio.gather(*map(call, range(6)))


if __name__ == "__main__":
    asyncio.run(main())
