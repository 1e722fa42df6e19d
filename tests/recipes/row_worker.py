"""A process of the row locks' tests: readers and writers of one number.

``python -m tests.recipes.row_worker URL NUMBER_URL TURNS LOOP``: the number is in a
file, read and written without any other protection. Writers add 1 in two steps; readers
see it stand still. Prints how often it was written.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.recipes import RowLock

PATIENCE = 100.0


def value(number: Path) -> int:
    """As it stands."""
    return int(number.read_text())


def put(number: Path, new: int) -> None:
    """In its place."""
    number.write_text(str(new))


async def write(lock: RowLock, number: Path) -> None:
    async with lock.write("adding", timeout=PATIENCE):
        before = value(number)
        await anyio.sleep(random.uniform(0, 0.002))
        put(number, before + 1)


async def read(lock: RowLock, number: Path) -> None:
    async with lock.read("looking", timeout=PATIENCE):
        before = value(number)
        await anyio.sleep(random.uniform(0, 0.002))
        assert value(number) == before


async def main(url: str, path: str, turns: int) -> int:
    async def task(lock: RowLock, writes: int) -> None:
        for turn in range(turns):
            await (write if turn < writes else read)(lock, Path(path))

    async with connect(url) as locks, anyio.create_task_group() as group:
        print("ready", flush=True)  # noqa: T201 - to whoever started us
        sys.stdin.readline()
        for writes in (0, turns // 2, turns):
            group.start_soon(task, locks.row_lock("invoices", 1), writes)
    return turns // 2 + turns


if __name__ == "__main__":
    url, path, turns, loop = sys.argv[1:]
    print(anyio.run(main, url, path, int(turns), backend=loop))  # noqa: T201
