"""Hold a lock, by as many tasks as told, until the word comes (or a kill)."""

from __future__ import annotations

from time import monotonic

import anyio

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say


async def run(client: Client, job: Job) -> None:
    """Says when all tasks are in, and when they began to leave."""
    locks = [await client.lock(job.key, job.mode) for _ in range(job.tasks)]
    say(ready=True)
    await hear()
    inside, over = 0, anyio.Event()
    all_in = anyio.Event()

    async def stay(number: int) -> None:
        nonlocal inside
        async with locks[number]:
            inside += 1
            if inside == job.tasks:
                all_in.set()
            await over.wait()

    async with anyio.create_task_group() as group:
        for number in range(job.tasks):
            group.start_soon(stay, number)
        await all_in.wait()
        say(got_in=monotonic())
        await hear()
        left = monotonic()
        over.set()
    say(left=left)
