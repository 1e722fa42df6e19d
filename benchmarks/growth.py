"""``python -m benchmarks.growth STORE…``: what does it cost, the more there are?

Four curves: locks that one process holds, clients with connections of their own that
hold a lock each, tasks of one process that wait for one lock, and locks that were used
and are kept for their fences. A Redis Cluster has one of its own: how much of the
servers each lock takes, the more nodes there are. At each number a newcomer with a
connection of its own takes another lock meanwhile, cycle after cycle. Many processes
that wait for one lock are measured by ``benchmarks.waiting``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiorwlock_remote import Held, Locks, connect
from benchmarks.harness.processes import resident_bytes
from benchmarks.harness.report import percentile, surroundings
from benchmarks.waiting import SPAWN, STORES, children, cpu
from tests.servers.cluster import Cluster

DATA = Path(__file__).parents[1] / "docs" / "pictures" / "growth.json"
NUMBERS = {
    "held": (10, 100, 1_000, 10_000, 30_000, 100_000),
    "clients": (10, 50, 100, 200, 500),
    "tasks": (10, 100, 1_000, 10_000),
    "rows": (1_000, 10_000, 100_000, 1_000_000),
    "nodes": (1, 3, 6),
}
CLUSTER = "redis-cluster"
"""The store of the curve ``nodes``, and of no other."""
TASKS = 64
"""That use locks of a cluster, each lock alone."""
LEASE = 30.0
AT_ONCE = 256
"""Acquires of the measured process under way at a time, while it gets there."""
CYCLES = 0.02
"""Seconds between two cycles of the newcomer."""


@dataclass(frozen=True)
class Point:
    """What was measured at one number of a curve.

    Attributes:
        reached: seconds until so many were there.
        memory: kB of the client for each.
        client: CPU time of the client, in cores, while nothing else happens.
        server: the same of the server, the newcomer's cycles included.
        renewals: leases renewed in a second.
        lost: grants lost in the whole time.
        turns: turns a second when the waiting tasks are let in, one after the other; of
            a cluster, locks acquired and released a second.
        cycle: a newcomer's acquire and release of another lock, the median in ms.
        slowest: the same, the 99th of a hundred.
    """

    store: str
    curve: str
    number: int
    reached: float = 0.0
    memory: float = 0.0
    client: float = 0.0
    server: float = 0.0
    renewals: float = 0.0
    lost: int = 0
    turns: float = 0.0
    cycle: float = 0.0
    slowest: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.store:11} {self.curve:6} {self.number:8,} {self.reached:8.1f} s"
            f" {self.memory:8.2f} kB {self.client:7.1%} {self.server:7.1%}"
            f" {self.renewals:8.0f} {self.lost:6} {self.turns:8.0f}"
            f" {self.cycle:7.2f} ms {self.slowest:8.2f} ms"
        )


HEAD = (
    "store       curve    number    reached  memory each  client  server"
    " renewals/s lost  turns/s   cycle, p50       p99"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each number, and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth")
    parser.add_argument("stores", nargs="+", choices=sorted([*STORES, CLUSTER]))
    parser.add_argument("--curves", nargs="+", choices=NUMBERS, default=list(NUMBERS))
    parser.add_argument("--limit", type=int, default=1_000_000, help="no number above")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--json", type=Path, default=DATA)
    options = parser.parse_args(argv)
    print(HEAD)
    for store in options.stores:
        facts = {**surroundings(Path()), "lease": LEASE}
        found: list[Point] = []
        for curve in options.curves:
            if (curve == "nodes") is not (store == CLUSTER):
                continue
            for number in NUMBERS[curve]:
                if number > options.limit:
                    continue
                with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                    start = STORES.get(store) or partial(_cluster, number)
                    url = stack.enter_context(start(Path(folder)))
                    point = Point(store, curve, number)
                    found.append(_measure(point, url, options.seconds))
                print(found[-1], flush=True)
        _save(options.json, store, facts | {"points": [asdict(p) for p in found]})
    return 0


def _save(file: Path, store: str, figures: dict[str, object]) -> None:
    """Write the figures of a store, and leave those of the other stores."""
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps(kept | {store: figures}, indent=1) + "\n", "utf-8")


def _measure(point: Point, url: str, seconds: float) -> Point:
    servers = children(os.getpid())
    pipe, theirs = SPAWN.Pipe()
    program = SPAWN.Process(target=_program, args=(url, point, theirs))
    program.start()
    theirs.close()
    try:
        assert program.pid is not None
        pipe.recv()
        before = resident_bytes(program.pid)
        began = time.monotonic()
        pipe.send("go")
        pipe.recv()
        reached = time.monotonic() - began
        used = resident_bytes(program.pid) - before
        # Nobody holds or waits; what is kept is the store's.
        if point.curve in ("rows", "nodes"):
            used = 0
        client, server = cpu([program.pid]), cpu(servers)
        began = time.monotonic()
        cycles = asyncio.run(_newcomer(url, seconds))
        took = time.monotonic() - began
        point = replace(
            point,
            reached=reached,
            memory=used / 1024 / point.number,
            client=(cpu([program.pid]) - client) / took,
            server=(cpu(servers) - server) / took,
            cycle=statistics.median(cycles),
            slowest=percentile(cycles, 99),
        )
        pipe.send("end")
        return replace(point, **pipe.recv())
    finally:
        program.join(20)
        program.kill()
        program.join()


async def _newcomer(url: str, seconds: float) -> list[float]:
    """Return the milliseconds of each cycle of a process of its own lock."""
    took = list[float]()
    end = time.monotonic() + seconds
    async with connect(url) as locks:
        mutex = locks.mutex("bench", "newcomer")
        while not took or time.monotonic() < end:
            began = time.perf_counter()
            async with mutex.acquire(60):
                pass
            took.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(CYCLES)
    return took


def _program(url: str, point: Point, pipe: Connection) -> None:
    asyncio.run(_run(url, point, pipe))


async def _run(url: str, point: Point, pipe: Connection) -> None:
    async with connect(url, lease=LEASE) as locks:
        async with locks.mutex("bench", "first"):
            pass
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        if point.curve == "clients":
            await _hold_one_each(url, point.number, pipe)
        else:
            await _CURVES[point.curve](locks, point.number, pipe)


async def _hold_many(locks: Locks, number: int, pipe: Connection) -> None:
    """Hold so many locks, which are renewed; count those that are lost."""
    few = asyncio.Semaphore(AT_ONCE)

    async def hold(name: int) -> Held:
        async with few:
            return await locks.mutex("held", name).acquire()

    holds = await asyncio.gather(*map(hold, range(number)))
    pipe.send("there")
    before, began = locks.statistics().renewals_sent, time.monotonic()
    await asyncio.to_thread(pipe.recv)
    took = time.monotonic() - began
    renewals = (locks.statistics().renewals_sent - before) / took
    lost = sum(held.lost is not None for held in holds)
    pipe.send({"renewals": renewals, "lost": lost})
    os._exit(0)  # to release them all is not measured, and would take long


async def _hold_one_each(url: str, number: int, pipe: Connection) -> None:
    """Let so many clients, each with its own connections, hold a lock of their own."""
    async with AsyncExitStack() as stack:
        holds = list[Held]()
        for name in range(number):
            locks = await stack.enter_async_context(connect(url, lease=LEASE))
            holds.append(await locks.mutex("held", name).acquire())
        pipe.send("there")
        await asyncio.to_thread(pipe.recv)
        pipe.send({"lost": sum(held.lost is not None for held in holds)})


async def _wait_many(locks: Locks, number: int, pipe: Connection) -> None:
    """Let so many tasks wait for a lock; then let them in, one after the other."""
    mutex = locks.mutex("bench", "waiting")
    turns = 0

    async def take_turn() -> None:
        nonlocal turns
        async with mutex.acquire(600):
            turns += 1

    async with mutex:
        tasks = [asyncio.ensure_future(take_turn()) for _ in range(number)]
        await asyncio.sleep(1)  # the first of them has a queue entry
        pipe.send("there")
        await asyncio.to_thread(pipe.recv)
        began = time.monotonic()
    await asyncio.gather(*tasks)
    pipe.send({"turns": turns / (time.monotonic() - began)})


async def _use_each_alone(locks: Locks, number: int, pipe: Connection) -> None:
    """Acquire and release locks of all nodes, with no other waiting for them."""
    del number
    cycles, goes_on = 0, True

    async def work(task: int) -> None:
        nonlocal cycles
        for turn in count():
            if not goes_on:
                return
            async with locks.mutex("used", f"{task}-{turn % 16}"):
                cycles += 1

    tasks = [asyncio.ensure_future(work(task)) for task in range(TASKS)]
    pipe.send("there")
    before, began = cycles, time.monotonic()
    await asyncio.to_thread(pipe.recv)
    rate = (cycles - before) / (time.monotonic() - began)
    goes_on = False
    await asyncio.gather(*tasks)
    pipe.send({"turns": rate})


@contextmanager
def _cluster(nodes: int, folder: Path) -> Iterator[str]:
    running = Cluster(folder, node_timeout=5.0, primaries=nodes, replicas=False)
    try:
        yield running.url
    finally:
        running.close()


async def _use_many(locks: Locks, number: int, pipe: Connection) -> None:
    """Use so many locks once: the store keeps a row for the fence of each."""
    names = iter(range(number))

    async def use() -> None:
        for name in names:
            async with locks.mutex("used", name):
                pass

    await asyncio.gather(*(use() for _ in range(AT_ONCE)))
    pipe.send("there")
    await asyncio.to_thread(pipe.recv)
    pipe.send({})


_CURVES: dict[str, Any] = {
    "held": _hold_many,
    "tasks": _wait_many,
    "rows": _use_many,
    "nodes": _use_each_alone,
}


if __name__ == "__main__":
    sys.exit(main())
