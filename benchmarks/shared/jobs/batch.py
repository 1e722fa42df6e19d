"""Many readers of one process wait for a writer of it: how long until all are in."""

from __future__ import annotations

from time import monotonic

import anyio

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say


async def run(client: Client, job: Job) -> None:
    """Says the seconds from before the writer's release to the last reader's entry."""
    writer = await client.lock(job.key, "writer")
    readers = [await client.lock(job.key, "reader") for _ in range(job.tasks)]
    say(ready=True)
    await hear()
    inside, last = 0, 0.0
    everybody = anyio.Event()

    async def read(number: int) -> None:
        nonlocal inside, last
        async with readers[number]:
            inside, last = inside + 1, monotonic()
            if inside == job.tasks:
                everybody.set()
            await everybody.wait()

    async with anyio.create_task_group() as group, writer:
        for number in range(job.tasks):
            group.start_soon(read, number)
        await anyio.sleep(job.section)  # all have asked, and been told to wait
        left = monotonic()
    say(took=last - left)
