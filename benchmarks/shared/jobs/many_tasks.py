"""Many tasks of one process wait for one lock, and leave as soon as they are in."""

from __future__ import annotations

from collections import Counter
from time import monotonic

import anyio

from benchmarks.shared.client import Client
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say

LONGEST = 35.0
"""Seconds after the word for the drain, then the rest is given up."""


async def run(client: Client, job: Job) -> None:
    """Says how many got in, when the last did, and what went wrong with the others."""
    locks = [await client.lock(job.key, job.mode) for _ in range(job.tasks)]
    say(ready=True)
    await hear()
    served, last = 0, 0.0
    errors: Counter[str] = Counter()
    everybody = anyio.Event()

    async def wait(number: int) -> None:
        nonlocal served, last
        try:
            async with locks[number]:
                served += 1
                last = monotonic()
        except Exception as exc:  # noqa: BLE001 - a peer's failure is a figure
            errors[f"{type(exc).__name__}: {exc}"[:80]] += 1
        if served + errors.total() == job.tasks:
            everybody.set()

    async with anyio.create_task_group() as group:
        for number in range(job.tasks):
            group.start_soon(wait, number)
        say(asked=job.tasks)
        await hear()
        with anyio.move_on_after(LONGEST):
            await everybody.wait()
        group.cancel_scope.cancel()
    say(served=served, last=last, errors=errors)
