"""``python -m benchmarks.redis.cancelled``: what an acquire that is cancelled leaves.

One task, a free lock, and a cancellation after so many turns of the loop, at random,
of those that an acquire usually takes. Then: was the task cancelled? Is there a key
without an owner? Which it is depends on the Python as well: run it by each.
"""

from __future__ import annotations

import asyncio
import platform
import random
import statistics
import sys
from dataclasses import dataclass

from benchmarks.redis.adapters import OURS, REDIS_PY, SEATS, opener
from benchmarks.redis.server import Server, server
from benchmarks.shared.client import Client

TRIES, USUAL = 150, 20
NEVER = sys.maxsize
LEASE = 30.0
SETTLED = 0.05
"""Seconds for what goes on in the background to reach the server."""


@dataclass
class Found:
    """What became of so many tries.

    ``late``: entered before. ``swallowed``: told to be cancelled before it had entered,
    and entered all the same. ``leaked``: of those ``cancelled``, how many left a key.
    """

    late: int = 0
    swallowed: int = 0
    cancelled: int = 0
    leaked: int = 0


async def one(client: Client, key: str, most: int) -> tuple[int, bool, bool]:
    """Cancel it after so many turns, unless it is in by then.

    How many it took; whether it was still to be cancelled, and whether it was.
    """
    lock, inside, leave = await client.lock(key, "mutex"), False, asyncio.Event()

    async def enter() -> None:
        nonlocal inside
        async with lock:
            inside = True
            await leave.wait()

    task, turns = asyncio.ensure_future(enter()), 0
    while turns < most and not inside:
        await asyncio.sleep(0)
        turns += 1
    asked = not inside and task.cancel()
    await asyncio.sleep(SETTLED)
    leave.set()
    await asyncio.wait({task})
    return turns, asked, task.cancelled()


async def tried(peer: str, running: Server, seed: int) -> Found:
    """So many tries of that peer."""
    chance, found = random.Random(seed), Found()
    async with opener(peer)(running.url, LEASE) as client:
        took = [(await one(client, f"usual-{n}", NEVER))[0] for n in range(USUAL)]
        usual = round(statistics.median(took))
        for number in range(TRIES):
            key = f"key-{number}"
            async with await client.lock("warm", "mutex"):
                pass  # a cancellation before may have cost the connection
            _, asked, cancelled = await one(client, key, chance.randint(0, usual))
            if not asked:
                found.late += 1
            elif not cancelled:
                found.swallowed += 1
            else:
                found.cancelled += 1
                await asyncio.sleep(SETTLED)
                found.leaked += running.ends(SEATS[peer] % key) is not None
    return found


def main() -> int:
    """Both, one after the other."""
    print(f"CPython {platform.python_version()}")
    with server() as running:
        for peer in (OURS, REDIS_PY):
            found = asyncio.run(tried(peer, running, seed=1))
            print(
                f"{peer}: {found.cancelled} cancelled, {found.leaked} of them left the "
                f"lock held; {found.swallowed} went on as if nobody had cancelled; "
                f"{found.late} had entered before"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
