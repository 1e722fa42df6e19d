"""``python -m benchmarks.sync``: threads on Redis, beside redis-py's synchronous Lock.

One thread alone, and 50 threads on 50 keys. The two locks and the floor (two calls into
the background loop that do nothing) are measured in turn, in one process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import redis

from aiorwlock_remote.sync import Locks, connect
from aiorwlock_remote.sync.background import background
from benchmarks.redis.server import server

THREADS = 50
LEASE = 30.0

Cycle = Callable[[], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.sync")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--cycles", type=int, default=400)
    options = parser.parse_args(argv)
    with server() as there, connect(there.url, lease=LEASE) as locks:
        client = redis.Redis.from_url(there.url)
        alone = {
            "redis-py": [_redis_py(client, 0)],
            "aiorwlock-remote": [_ours(locks, 0)],
            "two empty calls": [_nothing],
        }
        threads = {
            "redis-py": [_redis_py(client, n) for n in range(THREADS)],
            "aiorwlock-remote": [_ours(locks, n) for n in range(THREADS)],
        }
        one = _measure(alone, options.repeat, options.cycles)
        many = _measure(threads, options.repeat, max(1, options.cycles // 10))
    _report("one thread: µs a cycle", one, 1e6)
    _report(f"{THREADS} threads, {THREADS} keys: µs a cycle", many, 1e6)
    slower = _ratio(one, "aiorwlock-remote", "redis-py")
    faster = _ratio(many, "redis-py", "aiorwlock-remote")
    _bar(f"one thread: {slower:.2f} of redis-py's time", slower <= 1.3, "at most 1.3")
    _bar(f"{THREADS} threads: {faster:.2f} of its throughput", faster >= 1, "1 or more")
    return 0


def _redis_py(client: redis.Redis, key: int) -> Cycle:
    lock = client.lock(f"bench/{key}", timeout=LEASE)

    def cycle() -> None:
        with lock:
            pass

    return cycle


def _ours(locks: Locks, key: int) -> Cycle:
    lock = locks.mutex("bench", key)

    def cycle() -> None:
        with lock.acquire():
            pass

    return cycle


def _nothing() -> None:
    for _ in range(2):
        background().run(_empty)


async def _empty() -> None: ...


def _measure(
    peers: dict[str, list[Cycle]], repeat: int, cycles: int
) -> dict[str, list[float]]:
    """Return the seconds of a cycle, by peer and repetition."""
    seconds: dict[str, list[float]] = {peer: [] for peer in peers}
    for turn in range(repeat + 1):
        for peer, works in peers.items():
            took = _run(works, cycles)
            if turn:  # the first one opens connections
                seconds[peer].append(took / cycles / len(works))
    return seconds


def _run(works: list[Cycle], cycles: int) -> float:
    start = threading.Barrier(len(works) + 1)

    def work(cycle: Cycle) -> None:
        start.wait()
        for _ in range(cycles):
            cycle()

    threads = [threading.Thread(target=work, args=(cycle,)) for cycle in works]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _ratio(seconds: dict[str, list[float]], one: str, other: str) -> float:
    pairs = zip(seconds[one], seconds[other], strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def _report(title: str, seconds: dict[str, list[float]], unit: float) -> None:
    print(title)
    for peer, took in seconds.items():
        low, middle, high = min(took), statistics.median(took), max(took)
        shown = f"{middle * unit:.0f} ({low * unit:.0f} … {high * unit:.0f})"
        print(f"  {peer:18} {shown}")


def _bar(text: str, holds: bool, bar: str) -> None:  # noqa: FBT001 - a result
    print(f"{text}; {bar}: {'yes' if holds else 'NO'}")


if __name__ == "__main__":
    sys.exit(main())
