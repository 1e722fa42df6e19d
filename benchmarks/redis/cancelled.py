"""``python -m benchmarks.redis.cancelled``: what a cancelled acquire leaves behind.

A task acquires a free lock and is cancelled after a random number of turns of the
event loop, at most as many as an acquire usually takes. Counted are the tasks that were
not cancelled, and the keys that are left without an owner. The result depends on the
version of Python.
"""

from __future__ import annotations

import asyncio
import platform
import random
import statistics
import sys
from dataclasses import dataclass

from benchmarks.harness.lock import Client
from benchmarks.redis.adapters import LEASE_KEYS, OURS, REDIS_PY, opener
from benchmarks.redis.server import Server, server

TRIES, CALIBRATIONS = 150, 20
NEVER = sys.maxsize
LEASE = 30.0
SETTLE_SECONDS = 0.05
"""Seconds in which work in the background reaches the server."""


@dataclass
class Outcomes:
    """The outcomes of all tries of one peer.

    Attributes:
        late: The task had entered before its cancellation.
        swallowed: The task was cancelled before it had entered, and entered anyway.
        cancelled: The task ended as cancelled.
        leaked: Of the cancelled tasks, those that left a key.
    """

    late: int = 0
    swallowed: int = 0
    cancelled: int = 0
    leaked: int = 0


async def cancel_one(client: Client, key: str, most: int) -> tuple[int, bool, bool]:
    """Cancel an acquire after ``most`` turns of the loop, unless it has entered.

    Returns:
        The turns it took; whether it was cancelled before it entered; whether the task
        ended as cancelled.
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
    await asyncio.sleep(SETTLE_SECONDS)
    leave.set()
    await asyncio.wait({task})
    return turns, asked, task.cancelled()


async def try_peer(peer: str, running: Server, seed: int) -> Outcomes:
    """Cancel ``TRIES`` acquires of a peer, and count the outcomes."""
    chance, found = random.Random(seed), Outcomes()
    async with opener(peer)(running.url, LEASE) as client:
        took = [
            (await cancel_one(client, f"usual-{n}", NEVER))[0]
            for n in range(CALIBRATIONS)
        ]
        usual = round(statistics.median(took))
        for number in range(TRIES):
            key = f"key-{number}"
            # An earlier cancellation may have cost the connection: it is opened again
            # here, so that connecting does not take part in the next try.
            async with await client.lock("warm", "mutex"):
                pass
            _, asked, cancelled = await cancel_one(
                client, key, chance.randint(0, usual)
            )
            if not asked:
                found.late += 1
            elif not cancelled:
                found.swallowed += 1
            else:
                found.cancelled += 1
                await asyncio.sleep(SETTLE_SECONDS)
                found.leaked += running.expiry(LEASE_KEYS[peer] % key) is not None
    return found


def main() -> int:
    """Try both peers, and print their outcomes."""
    print(f"CPython {platform.python_version()}")
    with server() as running:
        for peer in (OURS, REDIS_PY):
            found = asyncio.run(try_peer(peer, running, seed=1))
            print(
                f"{peer}: {found.cancelled} cancelled, {found.leaked} of them left the "
                f"lock held; {found.swallowed} went on despite the cancellation; "
                f"{found.late} had entered before"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
