"""A worker process: ``python -m benchmarks.harness.worker '{"kind": …}'``.

The worker opens its peer, prints ``{"ready": true}``, waits for a line, does its job
and prints what came out, all in lines of JSON. A peer in another language only has to
speak these lines (see ``redis/go/main.go``).
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic, perf_counter

import anyio
from anyio import to_thread

from benchmarks.harness.lock import Client, Cycle, Open, run_on
from benchmarks.harness.scenario import Job

LAST_TURNS_SECONDS = 1.0
"""Seconds after the end of a window in which the tasks that wait may still get in."""
DRAIN_TIMEOUT = 35.0
"""Seconds after which the waiters that are left are given up."""

Turn = tuple[int, int, float, float, float, int]
"""Task; 1 for a write; when the task asked, got in, began to leave; fence or 0."""


def reply(**words: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(words), flush=True)


async def order() -> str:
    """Return the next line of stdin, without blocking the event loop."""
    line: str = await to_thread.run_sync(sys.stdin.readline)
    return line.strip()


async def ready() -> str:
    """Say that the worker is ready, and return the order to begin."""
    reply(ready=True)
    begin = await order()
    # The garbage of the start must not be collected while a cycle is timed.
    gc.collect()
    gc.freeze()
    return begin


# --------------------------------------------------------- one task, no competitors


async def time_cycles(client: Client, job: Job) -> None:
    """Reply the seconds of each of ``cycles``, after a tenth more to warm up."""
    lock = await client.lock(job.key, job.mode)
    await ready()
    took = []
    for _ in range(job.cycles + job.cycles // 10):
        started = perf_counter()
        async with lock:
            pass
        took.append(perf_counter() - started)
    reply(took=took[-job.cycles :])


async def hold_many(client: Client, job: Job) -> None:
    """Hold ``tasks`` locks; reply the share of a core that keeping them takes."""
    # The locks are taken before the worker is ready: only keeping them is measured.
    async with AsyncExitStack() as stack:
        for number in range(job.tasks):
            lock = await client.lock(job.key.format(task=number), job.mode)
            await stack.enter_async_context(lock)
        await ready()
        used, began = time.process_time(), monotonic()
        await anyio.sleep(job.seconds)
        used, took = time.process_time() - used, monotonic() - began
        reply(share=used / took)


# ------------------------------------------------------------------ tasks take turns


async def hold_at_random(client: Client, job: Job) -> None:
    """Take ``cycles`` turns of 0 to ``section`` seconds; reply when each was inside.

    The holds are random so that two processes do not fall into step.
    """
    lock = await client.lock(job.key, job.mode)
    chance = random.Random(job.seed)
    await ready()
    stays = []
    for _ in range(job.cycles):
        async with lock:
            got_in = monotonic()
            await anyio.sleep(chance.uniform(0, job.section))
            stays.append((got_in, monotonic()))
    reply(stays=stays)


async def hold_each(client: Client, job: Job) -> None:
    """Hold ``tasks`` locks, each with a key of its own, from one order to the next.

    Replies ``ready`` before the first lock and ``got_in`` after the last, so that the
    memory of a held lock shows.
    """
    await ready()
    async with AsyncExitStack() as stack:
        for number in range(job.tasks):
            lock = await client.lock(job.key.format(task=number), job.mode)
            await stack.enter_async_context(lock)
        reply(got_in=monotonic())
        await order()
        left = monotonic()
    reply(left=left)


async def take_turns(client: Client, job: Job) -> None:
    """Let all tasks take turns until a common end; reply all turns.

    The order to begin is the moment at which the time that counts begins, on the clock
    that all processes share; what happens earlier is the warm-up. A task that waits at
    the end may still get in for a second; after that the reply says since when it
    waits, so that the longest waits are seen at least in part. The reply also has the
    difference of wall clock and monotonic clock.
    """
    locks = [await _locks_of(client, job, task) for task in range(job.tasks)]
    # A moment, not a duration: workers read the order at different times.
    ends = float(await ready()) + job.seconds
    turns = Turns(ends)
    all_done = anyio.Event()
    left = job.tasks

    async def take(lock: Cycle, reader: Cycle | None, task: int) -> None:
        nonlocal left
        if reader is None:
            await _turns_of_one(lock, task, job, turns)
        else:
            await _turns_of_both(lock, reader, task, job, turns)
        left -= 1
        if not left:
            all_done.set()

    async with anyio.create_task_group() as group:
        for task, (lock, reader) in enumerate(locks):
            group.start_soon(take, lock, reader, task)
        # Fifty tasks that poll would take several seconds, which nobody looks at.
        with anyio.move_on_after(ends + LAST_TURNS_SECONDS - monotonic()):
            await all_done.wait()
        waiting = list(turns.waiting.values())
        reply(turns=turns.taken, waiting=waiting, wall=time.time() - monotonic())
        group.cancel_scope.cancel()


@dataclass
class Turns:
    """The turns of the tasks of one worker until ``ends``, on the monotonic clock.

    ``waiting``: task, 1 for a write, and since when it waits; by task.
    """

    ends: float
    taken: list[Turn] = field(default_factory=list[Turn])
    waiting: dict[int, tuple[int, int, float]] = field(
        default_factory=dict[int, tuple[int, int, float]]
    )

    async def take(self, lock: Cycle, task: int, writes: int, section: float) -> bool:
        """Take a turn; return False without one if the time is over."""
        asked = monotonic()
        if asked >= self.ends:
            return False
        self.waiting[task] = task, writes, asked
        async with lock as held:
            got_in = monotonic()
            del self.waiting[task]
            if section and got_in < self.ends:
                await anyio.sleep(section)
            turn = task, writes, asked, got_in, monotonic(), _fence(held)
            self.taken.append(turn)
        return True


async def _locks_of(client: Client, job: Job, task: int) -> tuple[Cycle, Cycle | None]:
    key = job.key.format(task=task)
    if job.writers is not None:
        mode = "writer" if task < job.writers else "reader"
        return await client.lock(key, mode), None
    if job.reads is None:
        return await client.lock(key, job.mode), None
    return await client.lock(key, "writer"), await client.lock(key, "reader")


async def _turns_of_one(lock: Cycle, task: int, job: Job, turns: Turns) -> None:
    writes = int(job.writers is None or task < job.writers)
    while await turns.take(lock, task, writes, job.section):
        pass


async def _turns_of_both(
    writer: Cycle, reader: Cycle, task: int, job: Job, turns: Turns
) -> None:
    assert job.reads is not None
    # A generator for each task: the turns of one do not depend on those of another.
    chance = random.Random(job.seed * 1000 + task)
    while True:
        writes = int(chance.random() >= job.reads)
        lock = writer if writes else reader
        if not await turns.take(lock, task, writes, job.section):
            return


def _fence(held: object) -> int:
    return getattr(held, "fence", 0)


# --------------------------------------------------------------- holders and waiters


async def hand_over(client: Client, job: Job) -> None:
    """Hold the lock for as many seconds as each order says; ``end`` ends.

    Replies ``got_in`` and ``left``: when the task entered, and when it was about to
    release.
    """
    lock = await client.lock(job.key, job.mode)
    reply(ready=True)
    while (word := await order()) not in {"", "end"}:
        async with lock:
            reply(got_in=monotonic())
            await anyio.sleep(float(word))
            left = monotonic()
        reply(left=left)


async def hold(client: Client, job: Job) -> None:
    """Hold the lock by ``tasks`` tasks until the next order, or until a kill.

    Replies ``got_in`` when all tasks hold, and ``left`` when they begin to release.
    """
    locks = [await client.lock(job.key, job.mode) for _ in range(job.tasks)]
    await ready()
    inside = 0
    all_in, leave = anyio.Event(), anyio.Event()

    async def stay(lock: Cycle) -> None:
        nonlocal inside
        async with lock:
            inside += 1
            if inside == job.tasks:
                all_in.set()
            await leave.wait()

    async with anyio.create_task_group() as group:
        for lock in locks:
            group.start_soon(stay, lock)
        await all_in.wait()
        reply(got_in=monotonic())
        await order()
        left = monotonic()
        leave.set()
    reply(left=left)


async def wait_together(client: Client, job: Job) -> None:
    """Let ``tasks`` tasks wait for one lock, which each leaves at once.

    The second order marks the release of the holder. Replies how many tasks were
    served, when the last was, and the errors of the others.
    """
    await ready()
    # What a lock object takes belongs to the memory of its waiter.
    locks = [await client.lock(job.key, job.mode) for _ in range(job.tasks)]
    served, last = 0, 0.0
    errors: Counter[str] = Counter()
    all_done = anyio.Event()

    async def wait(lock: Cycle) -> None:
        nonlocal served, last
        try:
            async with lock:
                served += 1
                last = monotonic()
        except Exception as exc:  # noqa: BLE001 - a peer's failure is a figure
            errors[f"{type(exc).__name__}: {exc}"[:80]] += 1
        if served + errors.total() == job.tasks:
            all_done.set()

    async with anyio.create_task_group() as group:
        for lock in locks:
            group.start_soon(wait, lock)
        reply(asked=job.tasks)
        await order()
        # A lock that loses a wake-up would keep its waiter, and the run, for ever.
        with anyio.move_on_after(job.seconds or DRAIN_TIMEOUT):
            await all_done.wait()
        group.cancel_scope.cancel()
    reply(served=served, last=last, errors=errors)


async def wait_for_killed(client: Client, job: Job) -> None:
    """Wait for ``tasks`` locks whose holders get killed; reply when each was obtained.

    The times are of the wall clock, which is the clock of the server's expiry.
    """
    keys = [f"{job.key}-{number}" for number in range(job.tasks)]
    locks = {key: await client.lock(key, job.mode) for key in keys}
    await ready()

    async def wait(key: str) -> None:
        async with locks[key]:
            got_in = time.time()
        reply(key=key, got_in=got_in)

    async with anyio.create_task_group() as group:
        for key in keys:
            group.start_soon(wait, key)
        reply(asked=job.tasks)


async def admit_readers(client: Client, job: Job) -> None:
    """Let ``tasks`` readers wait for a writer; reply the seconds until all are in."""
    writer = await client.lock(job.key, "writer")
    readers = [await client.lock(job.key, "reader") for _ in range(job.tasks)]
    await ready()
    inside, last = 0, 0.0
    all_in = anyio.Event()

    async def read(reader: Cycle) -> None:
        nonlocal inside, last
        async with reader:
            inside, last = inside + 1, monotonic()
            if inside == job.tasks:
                all_in.set()
            # The readers stay until all are in: they share the lock at one time.
            await all_in.wait()

    async with anyio.create_task_group() as group, writer:
        for reader in readers:
            group.start_soon(read, reader)
        # Every reader has asked and was refused before the writer releases.
        await anyio.sleep(job.section)
        left = monotonic()
    reply(took=last - left)


RUN: dict[str, Callable[[Client, Job], Awaitable[None]]] = {
    "admit_readers": admit_readers,
    "hand_over": hand_over,
    "hold": hold,
    "hold_each": hold_each,
    "hold_at_random": hold_at_random,
    "hold_many": hold_many,
    "take_turns": take_turns,
    "time_cycles": time_cycles,
    "wait_for_killed": wait_for_killed,
    "wait_together": wait_together,
}


async def _work(job: Job) -> None:
    # The adapters' package imports only the module of this peer: what a peer does not
    # use must not weigh on its garbage collector.
    connect: Open = import_module(f"{job.family}.adapters").opener(job.peer)
    async with connect(job.url, job.lease) as client:
        await RUN[job.kind](client, job)


def main() -> None:
    """Do the job that is given as the first argument."""
    job = Job(**json.loads(sys.argv[1]))
    run_on(job.loop, _work, job)


if __name__ == "__main__":
    main()
