"""A process of the occupancy tests: uses one object again and again, then for ever.

``python -m tests.faults.occupier SPEC FILE TURNS BODY AGE NAME`` appends a line to FILE
for each turn, all in one write: monotonic seconds of entering and leaving, the name.
AGE: of using records, or ``none``. It says ``ready`` and waits for a line, takes its
turns, says ``done`` and waits for a line, gets in once more, says ``in``, and stays.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio

from aiorwlock_remote.recipes import Occupancy, Occupied
from tests.recipes.occupied_places import BOOK, place_of


async def entered(occupancy: Occupancy, name: str) -> Occupied:
    """In the end."""
    while True:
        occupied = await occupancy.try_occupy(BOOK, 60, who=name)
        if occupied is not None:
            return occupied
        await anyio.sleep(0.02)


async def turns(occupancy: Occupancy, count: int, body: float, name: str) -> str:
    """A line for each."""
    lines: list[str] = []
    while len(lines) < count:
        async with await entered(occupancy, name) as occupied:
            since = time.monotonic()
            await anyio.sleep(body)
            occupied.check()
            until = time.monotonic()
        lines.append(f"{since} {until} {name}\n")
    return "".join(lines)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(
    spec: str, path: str, count: int, body: float, age: float | None, name: str
) -> None:
    """As above."""
    async with place_of(spec).open(using_age=age) as occupancy:
        _say("ready")
        sys.stdin.readline()
        lines = await turns(occupancy, count, body, name)
        with Path(path).open("ab", buffering=0) as file:  # noqa: ASYNC230 - one write
            file.write(lines.encode())
        _say("done")
        sys.stdin.readline()
        async with await entered(occupancy, name):
            _say("in")
            await anyio.sleep_forever()


if __name__ == "__main__":
    spec, path, count, body, age, name = sys.argv[1:]
    loop = "trio" if name.endswith("trio") else "asyncio"
    until = None if age == "none" else float(age)
    plan = int(count), float(body), until
    anyio.run(main, spec, path, *plan, name, backend=loop)
