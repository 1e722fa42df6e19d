"""A task waits for each of several locks whose holders are going to be killed."""

from __future__ import annotations

import time

import anyio

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say


async def run(client: Client, job: Job) -> None:
    """Says of each key when its task got in, by the wall clock, as the server's."""
    keys = [f"{job.key}-{number}" for number in range(job.tasks)]
    locks = {key: await client.lock(key, job.mode) for key in keys}
    say(ready=True)
    await hear()

    async def wait(key: str) -> None:
        async with locks[key]:
            got_in = time.time()
        say(key=key, got_in=got_in)

    async with anyio.create_task_group() as group:
        for key in keys:
            group.start_soon(wait, key)
        say(asked=job.tasks)
