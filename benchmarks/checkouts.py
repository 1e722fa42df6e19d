"""``python -m benchmarks.checkouts STORE CHECKOUT…``: a cycle of several checkouts.

Each checkout of this repository (``git worktree add --detach FOLDER COMMIT``) has a
process of its own. In turns, each of them acquires and releases its own lock again and
again; what counts is the ratio to the first checkout within a round. The client's CPU
time hardly depends on what else the machine does, the time of a cycle does.

With ``--threads N``, N threads use the synchronous API, each with a lock of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.waiting import STORES

CLIENT = """
import asyncio, sys, time
from aiorwlock_remote import connect

async def main(url, number, cycles):
    async with connect(url) as locks:
        lock = locks.mutex("bench", number)

        async def run():
            for _ in range(cycles):
                async with lock:
                    pass

        await run()
        for _ in sys.stdin:
            began, used = time.perf_counter(), time.process_time()
            await run()
            took = time.perf_counter() - began
            print(took / cycles, (time.process_time() - used) / cycles, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""

THREADS = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from aiorwlock_remote.sync import connect

url, number, cycles, threads = sys.argv[1], *map(int, sys.argv[2:])

def run(lock):
    for _ in range(cycles // threads):
        with lock.acquire():
            pass

with connect(url) as locks, ThreadPoolExecutor(threads) as pool:
    mutexes = [locks.mutex(f"bench{number}", n) for n in range(threads)]
    list(pool.map(run, mutexes))
    for _ in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        list(pool.map(run, mutexes))
        took = time.perf_counter() - began
        print(took / cycles, (time.process_time() - used) / cycles, flush=True)
"""

Round = list[tuple[float, float]]
"""Of each checkout: seconds of a cycle, and those of its client's CPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each checkout, and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.checkouts")
    parser.add_argument("store", choices=sorted(STORES))
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=400)
    parser.add_argument("--threads", type=int, default=0, help="0: asyncio")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = stack.enter_context(STORES[options.store](Path(folder)))
        clients = [
            stack.enter_context(_client(path, url, number, options))
            for number, path in enumerate(options.checkouts)
        ]
        rounds = [_round(clients, turn) for turn in range(options.rounds)]
        for client in clients:
            assert client.stdin is not None
            client.stdin.close()
    for number, path in enumerate(options.checkouts):
        print(f"{_shown('cycle', rounds, number, 0)}", end="  ")
        print(f"{_shown('client CPU', rounds, number, 1)}  {path}")
    return 0


def _client(
    path: Path, url: str, number: int, options: argparse.Namespace
) -> subprocess.Popen[str]:
    arguments = [url, str(number), str(options.cycles)]
    if options.threads:
        arguments.append(str(options.threads))
    return subprocess.Popen(
        [sys.executable, "-c", THREADS if options.threads else CLIENT, *arguments],
        cwd=path,
        env={**os.environ, "PYTHONPATH": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _round(clients: Sequence[subprocess.Popen[str]], turn: int) -> Round:
    found: dict[int, tuple[float, float]] = {}
    order = list(enumerate(clients))
    for number, client in order if turn % 2 else reversed(order):
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        took, used = map(float, client.stdout.readline().split())
        found[number] = took, used
    return [found[number] for number in range(len(clients))]


def _shown(name: str, rounds: Sequence[Round], number: int, what: int) -> str:
    middle = statistics.median(each[number][what] for each in rounds)
    ratio = statistics.median(each[number][what] / each[0][what] for each in rounds)
    return f"{name} {middle * 1e6:7.1f} µs {ratio:5.2f} of the first"


if __name__ == "__main__":
    sys.exit(main())
