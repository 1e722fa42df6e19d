"""One task, cycle after cycle: how long each takes."""

from __future__ import annotations

import gc
from time import perf_counter

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say


async def run(client: Client, job: Job) -> None:
    """Says the seconds of every cycle, without a tenth to warm up."""
    lock = await client.lock(job.key, job.mode)
    say(ready=True)
    await hear()
    gc.collect()
    gc.freeze()  # no pause for what was there before
    took = []
    for _ in range(job.cycles + job.cycles // 10):
        started = perf_counter()
        async with lock:
            pass
        took.append(perf_counter() - started)
    say(took=took[-job.cycles :])
