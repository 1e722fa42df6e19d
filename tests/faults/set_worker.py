"""A process of the mutex set's tests: tasks that take any mutex of a set.

``python -m tests.faults.set_worker URL FILE TASKS TURNS BODY NAME`` appends a line to
FILE for each grant: monotonic seconds of asking, entering and leaving, mutex, fence,
task. All in one write, so that processes may share the file.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.recipes import MutexSet

KEY = "proxies"


async def main(url: str, tasks: int, turns: int, body: float, name: str) -> str:
    """Run the tasks; the lines, once all have had their turns."""
    lines: list[str] = []

    async def task(pool: MutexSet, number: int) -> None:
        for _ in range(turns):
            asked = time.monotonic()
            async with pool.acquire(timeout=100) as held:
                entered = time.monotonic()
                await anyio.sleep(body)
                held.check()
                left = time.monotonic()
            lines.append(
                f"{asked} {entered} {left} {held.name} {held.fence} {name}.{number}\n"
            )

    async with connect(url) as locks, anyio.create_task_group() as group:
        pool = locks.mutex_set(KEY)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(tasks):
            group.start_soon(task, pool, number)
    return "".join(lines)


if __name__ == "__main__":
    url, path, tasks, turns, body, name = sys.argv[1:]
    loop = "trio" if name.endswith("trio") else "asyncio"
    plan = int(tasks), int(turns), float(body)
    lines = anyio.run(main, url, *plan, name, backend=loop)
    with Path(path).open("ab", buffering=0) as file:
        file.write(lines.encode())
