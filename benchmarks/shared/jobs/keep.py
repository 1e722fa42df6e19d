"""Hold many locks at once, and count what keeping them costs."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say


async def run(client: Client, job: Job) -> None:
    """``tasks`` locks; says what share of a core they took for ``seconds``."""
    async with AsyncExitStack() as stack:
        for number in range(job.tasks):
            lock = await client.lock(job.key.format(task=number), job.mode)
            await stack.enter_async_context(lock)
        say(ready=True)
        await hear()
        used, began = time.process_time(), time.monotonic()
        await anyio.sleep(job.seconds)
        used, took = time.process_time() - used, time.monotonic() - began
        say(share=used / took)
