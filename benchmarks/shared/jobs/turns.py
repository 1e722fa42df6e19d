"""Many tasks take their turns for a while: when each asked, got in and left.

All processes of a scenario are told the same moment, on the clock they share; what
happens before it is the warm-up. Who waits when the time is over gets in all the same,
after it, so that the longest waits are seen at least in part.
"""

from __future__ import annotations

import gc
import random
import time
from time import monotonic

import anyio

from benchmarks.shared.client import Client, Cycle
from benchmarks.shared.jobs.job import Job
from benchmarks.shared.jobs.talk import hear, say

Turn = tuple[int, int, float, float, float, int]
"""Task, 1 for a write, asked, got in, began to leave, fence or 0."""


async def run(client: Client, job: Job) -> None:
    """Says all turns, and the wall clock's time minus the monotonic one's."""
    locks = [await _locks(client, job, task) for task in range(job.tasks)]
    say(ready=True)
    ends = float(await hear()) + job.seconds
    gc.collect()
    gc.freeze()  # no pause for what was there before
    turns: list[Turn] = []
    async with anyio.create_task_group() as group:
        for task, (lock, other) in enumerate(locks):
            if other is None:
                group.start_soon(_one, lock, task, ends, job, turns)
            else:
                group.start_soon(_both, lock, other, task, ends, job, turns)
    say(turns=turns, wall=time.time() - monotonic())


async def _locks(client: Client, job: Job, task: int) -> tuple[Cycle, Cycle | None]:
    key = job.key.format(task=task)
    if job.writers is not None:
        return await client.lock(
            key, "writer" if task < job.writers else "reader"
        ), None
    if job.reads is None:
        return await client.lock(key, job.mode), None
    return await client.lock(key, "writer"), await client.lock(key, "reader")


async def _one(
    lock: Cycle, task: int, ends: float, job: Job, turns: list[Turn]
) -> None:
    writes, section = int(job.writers is None or task < job.writers), job.section
    while (asked := monotonic()) < ends:
        async with lock as held:
            got_in = monotonic()
            if section and got_in < ends:
                await anyio.sleep(section)
            turns.append((task, writes, asked, got_in, monotonic(), _fence(held)))


async def _both(
    writer: Cycle, reader: Cycle, task: int, ends: float, job: Job, turns: list[Turn]
) -> None:
    assert job.reads is not None
    chance = random.Random(job.seed * 1000 + task)
    while (asked := monotonic()) < ends:
        writes = int(chance.random() >= job.reads)
        async with writer if writes else reader as held:
            got_in = monotonic()
            if got_in < ends:
                await anyio.sleep(job.section)
            turns.append((task, writes, asked, got_in, monotonic(), _fence(held)))


def _fence(held: object) -> int:
    return getattr(held, "fence", 0)
