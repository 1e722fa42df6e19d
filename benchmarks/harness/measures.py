"""Measurements that several suites share, seen from outside the workers."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from benchmarks.harness.scenario import AnyServer, Job, Measured, Round

S = TypeVar("S", bound=AnyServer)

# ------------------------------------------------------------------- one task alone


def cycle_times(
    round_: Round[Any], cycles: int, mode: str, key: str, *, one_core: bool = True
) -> list[float]:
    """Return the microseconds of each cycle of one task that has no competitor.

    Args:
        round_: What is measured.
        cycles: How many cycles count.
        mode: As in ``Client.lock``.
        key: As in ``Client.lock``.
        one_core: Bind the client to one core, if the machine can.
    """
    core = round_.core if one_core else None
    job = round_.job("time_cycles", cycles=cycles, mode=mode, key=key, core=core)
    with round_.workers(job) as (worker,):
        worker.send("go")
        return [seconds * 1e6 for seconds in worker.receive("took")["took"]]


# ------------------------------------------------- from one process to a waiting one

HAND_OVERS = 60
UNCOUNTED_HAND_OVERS = 2
HAND_OVER = "hand-over, ms"
HAND_OVER_TITLE = "hand-over between processes, held for 50 to 450 ms"


def hand_overs(round_: Round[Any]) -> Measured:
    """Measure from just before a release to the grant in the other process.

    Each process holds for a random time: a lock that polls gets no chance to fall into
    step with its holder.
    """
    chance = random.Random(round_.seed)
    count = 5 if round_.quick else HAND_OVERS
    shortest, longest = (0.01, 0.05) if round_.quick else (0.05, 0.45)
    took = []
    job = round_.job("hand_over")
    with round_.workers(job, job) as pair:
        holder, other = pair
        holder.send(chance.uniform(shortest, longest))
        holder.receive("got_in")
        for _ in range(UNCOUNTED_HAND_OVERS + count):
            other.send(chance.uniform(shortest, longest))
            left = holder.receive("left")["left"]
            got_in = other.receive("got_in")["got_in"]
            # A benchmark of a lock that does not exclude would be worth nothing.
            assert left <= got_in, "two processes held the lock at the same time"
            took.append(1e3 * (got_in - left))
            holder, other = other, holder
        holder.receive("left")
        for worker in (holder, other):
            worker.send("end")
    return {HAND_OVER: took[UNCOUNTED_HAND_OVERS:]}


# --------------------------------------------------------- a thousand tasks that wait

WAITERS = 1000
SERVED = "served of 1,000"
CONNECTIONS = "connections"
DRAIN = "drain, s"
WAITERS_TITLE = "1,000 tasks of one process wait for 5 s"
QUICK_WAITERS = 20
SETTLE_SECONDS = 2.0
"""Seconds until all tasks have asked and were refused."""
WATCHED_SECONDS = 5.0


def waiters(
    round_: Round[S],
    watch: Callable[[float], Measured],
    quick: tuple[float, float] = (0.5, 2.0),
) -> Measured:
    """Measure what tasks cost while they wait, and the time until all were served.

    Args:
        round_: What is measured.
        watch: Measures what arrives at the server in so many seconds.
        quick: The seconds to settle and to watch in a quick round.
    """
    count, settle, watched = WAITERS, SETTLE_SECONDS, WATCHED_SECONDS
    if round_.quick:
        count, (settle, watched) = QUICK_WAITERS, quick
    server = round_.server
    # The holder is another process, so that waiters depend on the server to be woken.
    with round_.workers(round_.job("hold")) as (holder,):
        holder.send("go")
        holder.receive("got_in")
        before = server.connections()
        with round_.workers(round_.job("wait_together", tasks=count)) as (waiting,):
            waiting.send("go")
            waiting.receive("asked")
            time.sleep(settle)
            connections = server.connections() - before
            measured = watch(watched)
            # First the waiters' time limit begins, then the holder releases.
            waiting.send("now")
            holder.send("now")
            left = holder.receive("left")["left"]
            result = waiting.receive("served")
    assert result["served"] + sum(result["errors"].values()) <= count
    return measured | {
        CONNECTIONS: [connections],
        SERVED: [WAITERS * result["served"] / count],
        DRAIN: [result["last"] - left],
    }


# ------------------------------------------------------------------ tasks take turns

CYCLES = "cycles/s"
LONGEST = "longest wait / mean wait"
SPREAD = "task furthest from the mean, %"
LEAST = "fewest turns of a task"
MOST = "most turns of a task"
LONGEST_MS = "longest wait, ms"
RISING = "fences rise every cycle"
WARM_UP, QUICK_WARM_UP = 0.5, 0.1
START_SECONDS = 0.1
"""Seconds from the order to begin until the workers have read it."""


@dataclass(frozen=True)
class Turn:
    """A turn of a task; the times are on the clock that all processes share."""

    task: tuple[int, int]
    writes: bool
    asked: float
    got_in: float
    left: float
    fence: int


@dataclass(frozen=True)
class Window:
    """All turns of one run, and the span of time that counts.

    ``wall`` is the difference of wall clock and shared clock.
    """

    begin: float
    end: float
    wall: float
    turns: list[Turn]

    def counted(self) -> list[Turn]:
        """Return the turns that began in the window."""
        return [turn for turn in self.turns if self.begin <= turn.got_in < self.end]

    def waits(self, turns: list[Turn]) -> list[float]:
        """Return the seconds waited; a wait beyond the end counts until the end."""
        return [
            min(turn.got_in, self.end) - turn.asked
            for turn in turns
            if turn.asked < self.end and turn.got_in >= self.begin
        ]


def take_turns(round_: Round[Any], jobs: Sequence[Job]) -> Window:
    """Run the jobs side by side, all in the same window."""
    with round_.workers(*jobs) as workers:
        warm_up = QUICK_WARM_UP if round_.quick else WARM_UP
        begin = time.monotonic() + START_SECONDS + warm_up
        for worker in workers:
            worker.send(begin)
        replies = [worker.receive("turns") for worker in workers]
    turns = [
        Turn((number, task), bool(writes), *rest)
        for number, reply in enumerate(replies)
        for task, writes, *rest in reply["turns"]
    ]
    # In the order of the grants, over all processes: overlaps and fences show.
    turns.sort(key=lambda turn: turn.got_in)
    return Window(begin, begin + jobs[0].seconds, replies[0]["wall"], turns)


def own_key_cycles(
    round_: Round[Any], tasks: int, key: str, seconds: float
) -> Measured:
    """Measure the cycles a second of tasks that each have a resource of their own."""
    job = round_.job("take_turns", tasks=tasks, key=key, seconds=seconds)
    return {CYCLES: [len(take_turns(round_, [job]).counted()) / seconds]}


def mutex_turns(window: Window, tasks: Sequence[int]) -> Measured:
    """Measure a mutex: how many cycles, by which tasks, after which waits.

    Args:
        window: Turns that may not overlap.
        tasks: How many tasks each process has.
    """
    for before, after in pairwise(window.turns):
        assert before.left <= after.got_in, "two tasks held the lock at the same time"
    counted, waits = window.counted(), window.waits(window.turns)
    cycles = Counter(turn.task for turn in counted)
    mean = len(counted) / sum(tasks)
    # A task that never got in has no turn in the window, and counts with 0.
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
    # Floors and most peers have no fence, and no line about it in the table.
    fences = [turn.fence for turn in window.turns]
    if any(fences):
        measured[RISING] = [float(all(a < b for a, b in pairwise(fences)))]
    return measured
