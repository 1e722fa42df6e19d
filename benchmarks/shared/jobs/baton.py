"""Take the lock when told to, hold it as long as told: one side of a hand-over."""

from __future__ import annotations

from time import monotonic

import anyio

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say


async def run(client: Client, job: Job) -> None:
    """Hears seconds to hold, says when it got in and when it began to leave."""
    lock = await client.lock(job.key, job.mode)
    say(ready=True)
    while (word := await hear()) not in {"", "end"}:
        async with lock:
            say(got_in=monotonic())
            await anyio.sleep(float(word))
            left = monotonic()
        say(left=left)
