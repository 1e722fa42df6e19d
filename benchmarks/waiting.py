"""``python -m benchmarks.waiting STORE…``: many processes wait for one lock.

Each waiter is a ``Locks`` of its own, as a process has one; a few programs run them.
First one holder keeps the lock, and all others wait: what does that cost the server?
Then the waiters take turns, each holding the lock for two milliseconds: how many a
second, beside 25 waiters?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from aiorwlock_remote import Mutex, connect
from benchmarks.cassandra.server import Server as CassandraTables
from benchmarks.redis.server import server as redis_server
from benchmarks.sql.server import CONFIG
from tests.servers import fix_mariadb
from tests.servers.cassandra import CassandraNode
from tests.servers.cassandra_ring import Visit
from tests.servers.etcd import Etcd
from tests.servers.fix_postgresql import make_tables
from tests.servers.mariadb import Mariadb
from tests.servers.mariadb import run as ask_mariadb
from tests.servers.postgresql import Postgresql

HOLD = 0.002
"""Seconds for which a waiter holds the lock."""
FEW = 25
"""The number of waiters with whose turns those of more are compared."""
PROGRAMS = 2
CONNECTING = 10
"""How many ``Locks`` of a program connect at a time."""
START_TIMEOUT = 300.0
SETTLE = 6.0
"""Seconds after which each waiter has looked again, and waits at its later pace."""
RESOURCE = "bench", "waiting"
_TICKS = os.sysconf("SC_CLK_TCK")
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Figures:
    """What was measured with so many waiters.

    Attributes:
        waiting: CPU time of the server while one holder keeps the lock, in cores.
        waiting_clients: The same of all clients.
        turns: Turns a second, when the waiters hold the lock in turn.
        busy: CPU time of the server meanwhile, in cores.
        served: Waiters that had a turn at all.
        pause: The longest time without a turn, in seconds.
    """

    store: str
    waiters: int
    waiting: float
    waiting_clients: float
    turns: float
    busy: float
    served: int
    pause: float

    def __str__(self) -> str:
        return (
            f"{self.store:16} {self.waiters:7} {self.waiting:14.1%}"
            f" {self.waiting_clients:8.1%} {self.turns:8.0f} {self.busy:7.0%}"
            f" {self.served:7} {self.pause:8.2f} s"
        )


HEAD = (
    f"{'store':16} waiters waiting: server  clients  turns/s  server"
    f"  served  longest pause"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each number of waiters, and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.waiting")
    parser.add_argument("stores", nargs="+", choices=sorted(STORES))
    parser.add_argument("--waiters", type=int, nargs="+", default=[1, 100, 400, 800])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    found: list[Figures] = []
    print(HEAD)
    for store in options.stores:
        for waiters in dict.fromkeys([FEW, *options.waiters]):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                url = stack.enter_context(STORES[store](Path(folder)))
                found.append(_measure(store, url, waiters, options.seconds))
            print(found[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return 0


def _measure(store: str, url: str, waiters: int, seconds: float) -> Figures:
    servers = children(os.getpid())
    stop, turns = SPAWN.Event(), SPAWN.Array("L", waiters, lock=False)
    programs = [
        SPAWN.Process(target=_program, args=(url, number, turns, stop))
        for number in range(min(PROGRAMS, waiters))
    ]
    try:
        held = asyncio.run(_hold(url, programs, servers, waiters, seconds))
        time.sleep(1.0)
        began, before, used = time.monotonic(), sum(turns), cpu(servers)
        pause, seen, since = 0.0, before, began
        while (now := time.monotonic()) < began + seconds:
            pause = max(pause, now - since)
            if (count := sum(turns)) != seen:
                seen, since = count, now
            time.sleep(0.01)
        took = now - began
        busy = (cpu(servers) - used) / took
    finally:
        stop.set()
        for program in programs:
            program.join(20)
            program.kill()
            program.join()
    rate, served = (seen - before) / took, sum(count > 0 for count in turns)
    return Figures(store, waiters, *held, rate, busy, served, pause)


async def _hold(
    url: str, programs: Sequence[Any], servers: Sequence[int], waiters: int, span: float
) -> tuple[float, float]:
    """Keep the lock until all wait; return the CPU time of the server and the clients
    while they do, in cores.
    """
    async with connect(url) as locks, locks.mutex(*RESOURCE) as held:
        for program in programs:
            program.start()
        end = time.monotonic() + START_TIMEOUT
        while len((await locks.mutex(*RESOURCE).info()).queue) < waiters:
            if time.monotonic() > end:
                sys.exit(f"{url}: {waiters} waiters did not start in {START_TIMEOUT} s")
            await asyncio.sleep(0.5)
        await asyncio.sleep(SETTLE)
        clients = [program.pid for program in programs]
        before, began = (cpu(servers), cpu(clients)), time.monotonic()
        await asyncio.sleep(span)
        took = time.monotonic() - began
        held.check()
        return (cpu(servers) - before[0]) / took, (cpu(clients) - before[1]) / took


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def cpu(pids: Sequence[int]) -> float:
    """Return the CPU seconds of processes, their descendants and those that ended."""
    used = 0.0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
            used += sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS
            used += cpu(children(pid))
        except OSError:  # it has ended
            continue
    return used


def _program(url: str, number: int, turns: Any, stop: Event) -> None:  # noqa: ANN401
    asyncio.run(_run(url, range(number, len(turns), PROGRAMS), turns, stop))


async def _run(url: str, mine: range, turns: Any, stop: Event) -> None:  # noqa: ANN401
    few = asyncio.Semaphore(CONNECTING)

    async def take_turns(mutex: Mutex, index: int) -> None:
        while not stop.is_set():
            async with mutex.acquire():
                await asyncio.sleep(HOLD)
                turns[index] += 1

    async def work(index: int) -> None:
        async with AsyncExitStack() as stack:
            async with few:
                locks = await stack.enter_async_context(connect(url))
                task = asyncio.ensure_future(take_turns(locks.mutex(*RESOURCE), index))
                while not locks.statistics().requests_sent:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await task

    tasks = [asyncio.ensure_future(work(index)) for index in mine]
    await asyncio.to_thread(stop.wait)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    del folder
    with redis_server() as running:
        yield running.url


@contextmanager
def _postgresql(folder: Path) -> Iterator[str]:
    running = Postgresql(folder, CONFIG | {"max_connections": "2000"})
    try:
        make_tables(running.url)
        yield running.url
    finally:
        running.close()


@contextmanager
def _mariadb(folder: Path) -> Iterator[str]:
    running = Mariadb(folder)
    try:
        ask_mariadb(running.root, "CREATE DATABASE bench")
        ask_mariadb(running.root, "SET GLOBAL max_connections = 2000")
        fix_mariadb.make_tables(f"{running.root}bench")
        yield f"{running.root}bench"
    finally:
        running.close()


@contextmanager
def _mariadb_woken(folder: Path) -> Iterator[str]:
    with _mariadb(folder) as url, redis_server() as redis:
        yield f"{url}?wake={redis.url}"


@contextmanager
def _cassandra(folder: Path) -> Iterator[str]:
    running = CassandraNode(folder)
    try:
        with Visit("127.0.0.1", running.port) as visit:
            yield CassandraTables(running.url, visit, 1, "").url()
    finally:
        running.close()


@contextmanager
def _etcd(folder: Path) -> Iterator[str]:
    running = Etcd(folder)
    try:
        yield running.url
    finally:
        running.close()


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder}/locks.db"


STORES: dict[str, Callable[[Path], Any]] = {
    "redis": _redis,
    "postgresql": _postgresql,
    "mariadb": _mariadb,
    "mariadb+wake": _mariadb_woken,
    "cassandra": _cassandra,
    "etcd": _etcd,
    "sqlite": _sqlite,
}

if __name__ == "__main__":
    sys.exit(main())
