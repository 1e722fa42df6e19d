"""50 tasks in each of 4 processes on a set of 5, and processes that are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.recipes.fix_sets import KEY, traces
from tests.second_look import second_look
from tests.servers.process import until
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = ("p0-asyncio", "p1-trio", "p2-asyncio", "p3-trio")
FIVE = ("a", "b", "c", "d", "e")
TASKS, TURNS, BODY = 50, 4, 0.05


@dataclass(frozen=True)
class Turn:
    """One grant; monotonic seconds."""

    asked: float
    entered: float
    left: float
    mutex: str
    fence: int
    task: str


@contextmanager
def crowd(
    url: str, path: Path, names: tuple[str, ...], *plan: float
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have connected; they begin together, and are always ended."""
    running: list[subprocess.Popen[str]] = []
    try:
        for name in names:
            arguments = [url, str(path), *map(str, plan), name]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.set_worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            running.append(process)
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def turns_of(path: Path) -> list[Turn]:
    turns: list[Turn] = []
    for line in path.read_text().splitlines():
        asked, entered, left, mutex, fence, task = line.split()
        times = float(asked), float(entered), float(left)
        turns.append(Turn(*times, mutex, int(fence), task))
    return turns


@second_look("it measures which share of its time each mutex is in use")
def test_fifty_tasks_in_four_processes(
    fresh_redis: RedisServer, tmp_path: Path
) -> None:
    fresh_redis.ask("ZADD", KEY, *(x for name in FIVE for x in (0, name)))
    path = tmp_path / "turns"
    with crowd(fresh_redis.url, path, NAMES, TASKS, TURNS, BODY) as processes:
        for process in processes:
            process.wait(120)
            assert process.returncode == 0
    turns = turns_of(path)
    assert Counter(turn.task for turn in turns) == {
        f"{name}.{number}": TURNS for name in NAMES for number in range(TASKS)
    }, "every task had all its turns"
    by_mutex: defaultdict[str, list[Turn]] = defaultdict(list)
    for turn in sorted(turns, key=lambda turn: turn.entered):
        by_mutex[turn.mutex].append(turn)
    assert set(by_mutex) == set(FIVE)
    for some in by_mutex.values():
        for before, after in pairwise(some):
            assert before.left <= after.entered, "two held one mutex"
            assert before.fence < after.fence
    whole = max(t.left for t in turns) - min(t.entered for t in turns)
    busy = sum(t.left - t.entered for t in turns) / whole
    assert busy > 3.5, f"of five, {busy:.2f} were busy on the average"
    waits = sorted(turn.entered - turn.asked for turn in turns)
    # First come first served: each waits for about all the others, once.
    round_robin = whole / TURNS
    assert waits[-1] < 2 * round_robin, (waits[-1], round_robin)
    assert traces(fresh_redis) == []


def test_killed_holders_and_waiters(fresh_redis: RedisServer, tmp_path: Path) -> None:
    """Leases end, places are passed over; the others get all their turns."""
    fresh_redis.ask("ZADD", KEY, 0, "a", 0, "b")
    # Somebody died with one of two long ago, and was never heard of again.
    fresh_redis.ask("ZADD", KEY, str(time.time() - 59), "b")
    path = tmp_path / "turns"
    with crowd(fresh_redis.url, path, NAMES[:3], 10, 20, 0.01) as processes:
        until(lambda: len(traces(fresh_redis)) > 3, "they wait for each other")
        processes[0].kill()
        for process in processes[1:]:
            process.wait(120)
            assert process.returncode == 0
    counted = Counter(turn.task.partition(".")[0] for turn in turns_of(path))
    assert counted == {NAMES[1]: 200, NAMES[2]: 200}
