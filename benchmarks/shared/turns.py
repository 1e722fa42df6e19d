"""Tasks take turns for a while, in one process or in several."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.shared.jobs import Job
from benchmarks.shared.scenario import Measured, Round

CYCLES = "cycles/s"
LONGEST = "longest wait / mean wait"
SPREAD = "task furthest from the mean, %"
LEAST = "fewest turns of a task"
MOST = "most turns of a task"
LONGEST_MS = "longest wait, ms"
RISING = "fences rise every cycle"
WARM_UP = 0.5
START = 0.1


@dataclass(frozen=True)
class Turn:
    """A task's turn; times on the clock that all processes share."""

    task: tuple[int, int]
    writes: bool
    asked: float
    got_in: float
    left: float
    fence: int


@dataclass(frozen=True)
class Window:
    """All turns of one run, and the time that counts."""

    begin: float
    end: float
    wall: float
    turns: list[Turn]

    def counted(self) -> list[Turn]:
        """The turns that began in it."""
        return [turn for turn in self.turns if self.begin <= turn.got_in < self.end]

    def waits(self, turns: list[Turn]) -> list[float]:
        """Seconds waited; of who was still waiting at the end, those until then."""
        return [
            min(turn.got_in, self.end) - turn.asked
            for turn in turns
            if turn.asked < self.end and turn.got_in >= self.begin
        ]


def run(round_: Round[Any], jobs: Sequence[Job]) -> Window:
    """The jobs side by side, all in the same window."""
    with round_.workers(*jobs) as started:
        begin = time.monotonic() + START + (0.1 if round_.quick else WARM_UP)
        for worker in started:
            worker.tell(begin)
        said = [worker.hear("turns") for worker in started]
    turns = [
        Turn((number, task), bool(writes), *rest)
        for number, each in enumerate(said)
        for task, writes, *rest in each["turns"]
    ]
    turns.sort(key=lambda turn: turn.got_in)
    return Window(begin, begin + jobs[0].seconds, said[0]["wall"], turns)


def judged(window: Window, tasks: Sequence[int]) -> Measured:
    """A mutex: how many cycles, who got them, who waited how long.

    ``tasks``: how many each process has.
    """
    for before, after in pairwise(window.turns):
        assert before.left <= after.got_in, "two tasks held the lock at the same time"
    counted, waits = window.counted(), window.waits(window.turns)
    cycles = Counter(turn.task for turn in counted)
    mean = len(counted) / sum(tasks)
    turns = [cycles[p, t] for p, number in enumerate(tasks) for t in range(number)]
    off = [abs(each - mean) for each in turns]
    measured: Measured = {
        CYCLES: [len(counted) / (window.end - window.begin)],
        SPREAD: [100 * max(off) / mean if mean else 0.0],
        LEAST: [min(turns)],
        MOST: [max(turns)],
        LONGEST: [max(waits) / statistics.mean(waits)],
        "wait p50, ms": [1e3 * statistics.median(waits)],
        LONGEST_MS: [1e3 * max(waits)],
    }
    fences = [turn.fence for turn in window.turns]
    if any(fences):
        measured[RISING] = [float(all(a < b for a, b in pairwise(fences)))]
    return measured
