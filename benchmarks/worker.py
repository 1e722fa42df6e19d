"""One process of the scenario with several: takes its turns, tells when it was in."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import anyio

from benchmarks.adapters import peer as peer_named
from benchmarks.loops import run
from benchmarks.peer import Peer

LONGEST_HOLD = 0.005


async def _take_turns(
    peer: Peer, folder: Path, turns: int, chance: random.Random
) -> list[tuple[float, float]]:
    stays = []
    async with peer.open(folder) as lock:
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        for _ in range(turns):
            async with lock():
                got_in = time.monotonic()
                await anyio.sleep(chance.uniform(0, LONGEST_HOLD))
                stays.append((got_in, time.monotonic()))
    return stays


def main() -> None:
    """One of the processes."""
    name, loop, folder, turns, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    peer = peer_named(name)
    stays = run(loop, _take_turns, peer, Path(folder), int(turns), chance)
    print(json.dumps(stays))


if __name__ == "__main__":
    main()
