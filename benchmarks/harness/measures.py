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

from benchmarks.harness.processes import MEASURABLE, cpu_seconds, resident_bytes
from benchmarks.harness.report import Bar, Minimum, Of
from benchmarks.harness.scenario import AnyServer, Job, Measured, Round, Worker

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

HAND_OVERS = 32
HAND_OVER_TIMEOUT = 20.0
"""Seconds after which a hand-over is lost: some peers lose a wake-up now and then."""
UNCOUNTED_HAND_OVERS = 2
HAND_OVER = "hand-over, ms"
HAND_OVER_TITLE = "hand-over between processes, held for 50 to 450 ms"


def hand_overs(round_: Round[Any]) -> Measured:
    """Measure from just before a release to the grant in the other process.

    Each process holds for a random time: a lock that polls gets no chance to fall into
    step with its holder.
    """
    chance = random.Random(round_.seed)
    count = round_.count(5, HAND_OVERS)
    shortest, longest = (0.01, 0.05) if round_.quick else (0.05, 0.45)
    took = []
    job = round_.job("hand_over")
    with round_.workers(job, job) as pair:
        holder, other = pair
        holder.send(chance.uniform(shortest, longest))
        holder.receive("got_in")
        for _ in range(UNCOUNTED_HAND_OVERS + count):
            other.send(chance.uniform(shortest, longest))
            left = holder.receive("left", HAND_OVER_TIMEOUT)["left"]
            got_in = other.receive("got_in", HAND_OVER_TIMEOUT)["got_in"]
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
FEW_WAITERS = 100
SERVED = "served of 1,000"
CONNECTIONS = "connections"
DRAIN = "drain, s"
CPU_WHILE_WAITING = "CPU of the waiting process, % of a core"
MEMORY_OF_WAITER = "client's memory, kB a waiter"
WAITERS_TITLE = "1,000 tasks of one process wait"
QUICK_WAITERS = 20
SETTLE_SECONDS = 1.5
"""Seconds until all tasks have asked and were refused."""
LEAST_SETTLE_SECONDS = 1.0
"""The same for more than ``FEW_WAITERS``, however little is measured."""
WATCHED_SECONDS = 4.0


def number_waiting(round_: Round[Any], count: int) -> int:
    """Return how many tasks wait: fewer in a quick round."""
    return min(count, QUICK_WAITERS) if round_.quick else count


def waiters(
    round_: Round[S],
    watch: Callable[[float], Measured],
    quick: tuple[float, float] = (0.5, 2.0),
    *,
    count: int = WAITERS,
    drain_timeout: float = 0.0,
) -> Measured:
    """Measure what tasks cost while they wait, and the time until all were served.

    Args:
        round_: What is measured.
        watch: Measures what arrives at the server in so many seconds.
        quick: The seconds to settle and to watch in a quick round.
        count: How many tasks wait.
        drain_timeout: Seconds until the waiters that are left are given up; 0 for the
            workers' own limit.
    """
    settle = round_.scale * SETTLE_SECONDS
    if count > FEW_WAITERS:
        settle = max(LEAST_SETTLE_SECONDS, settle)
    watched = round_.scale * WATCHED_SECONDS
    if round_.quick:
        settle, watched = quick
    count = number_waiting(round_, count)
    server = round_.server
    job = round_.job("wait_together", tasks=count, seconds=drain_timeout)
    # The holder is another process, so that waiters depend on the server to be woken.
    with round_.workers(round_.job("hold")) as (holder,):
        holder.send("go")
        holder.receive("got_in")
        before = server.connections()
        with round_.workers(job) as (waiting,):
            alone = _memory(waiting)
            waiting.send("go")
            waiting.receive("asked")
            time.sleep(settle)
            connections = server.connections() - before
            used, began = _cpu(waiting), time.monotonic()
            measured = watch(watched)
            share = (_cpu(waiting) - used) / (time.monotonic() - began)
            grown = _memory(waiting) - alone
            # First the waiters' time limit begins, then the holder releases.
            waiting.send("now")
            holder.send("now")
            left = holder.receive("left")["left"]
            result = waiting.receive("served")
    assert result["served"] + sum(result["errors"].values()) <= count
    if MEASURABLE:
        measured |= {
            CPU_WHILE_WAITING: [100 * share],
            MEMORY_OF_WAITER: [grown / count / 1e3],
        }
    return measured | {
        CONNECTIONS: [connections],
        SERVED: [WAITERS * result["served"] / count],
        DRAIN: [result["last"] - left],
    }


def _cpu(worker: Worker) -> float:
    return cpu_seconds([worker.process_id]) if MEASURABLE else 0.0


def _memory(worker: Worker) -> int:
    return resident_bytes(worker.process_id) if MEASURABLE else 0


# --------------------------------------------------------------- locks that are held

HELD = 5000
MEMORY_OF_HELD = "client's memory, kB a held lock"
SERVER_MEMORY_OF_HELD = "server's memory, kB a held lock"


def held_memory(round_: Round[Any], used: Callable[[], float], key: str) -> Measured:
    """Measure the memory that held locks take, in the client and in the server.

    Args:
        round_: What is measured.
        used: Returns the bytes that the server uses now.
        key: Of a lock, with ``{task}`` for its number.
    """
    count = round_.count(50, HELD)
    job = round_.job("hold_each", tasks=count, key=key)
    with round_.workers(job) as (holder,):
        alone, empty = _memory(holder), used()
        holder.send("go")
        holder.receive("got_in")
        grown, filled = _memory(holder) - alone, used() - empty
        holder.send("now")
        holder.receive("left")
    measured: Measured = {SERVER_MEMORY_OF_HELD: [filled / count / 1e3]}
    if MEASURABLE:
        measured[MEMORY_OF_HELD] = [grown / count / 1e3]
    return measured


# ------------------------------------------------------------------ tasks take turns

CYCLES = "cycles/s"
TASKS_OF_PROCESSES = (13, 13, 12, 12)
"""Tasks at one resource in each of four processes: fifty."""
LONGEST = "longest wait / mean wait"
SPREAD = "task furthest from the mean, %"
TURNS = "turns of a task"
CLIENT_CPU = "CPU of the clients, µs a cycle"
SERVER_CPU = "CPU of the server, µs a cycle"
LEAST = "fewest turns of a task"
MOST = "most turns of a task"
LONGEST_MS = "longest wait, ms"
RISING = "fences rise every cycle"
WARM_UP, QUICK_WARM_UP = 0.3, 0.1
LAST_TURN_TIMEOUT = 15.0
"""Seconds after the end of the window in which the tasks that wait have to get in."""
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

    Attributes:
        wall: Difference of wall clock and shared clock.
        waiting: Whether the wait of each task that did not get in was for a write, and
            since when it waited.
        client_cpu: Seconds of CPU time that the workers used; None if unknown.
        server_cpu: The same of the server.
    """

    begin: float
    end: float
    wall: float
    turns: list[Turn]
    client_cpu: float | None = None
    server_cpu: float | None = None
    waiting: Sequence[tuple[bool, float]] = ()

    def cpu_a_cycle(self) -> Measured:
        """Return the microseconds of CPU time for each turn in the window."""
        turns = len(self.counted())
        used = {CLIENT_CPU: self.client_cpu, SERVER_CPU: self.server_cpu}
        return {
            name: [1e6 * seconds / turns]
            for name, seconds in used.items()
            if seconds is not None and turns
        }

    def counted(self) -> list[Turn]:
        """Return the turns that began in the window."""
        return [turn for turn in self.turns if self.begin <= turn.got_in < self.end]

    def waits(self, *, writes: bool | None = None) -> list[float]:
        """Return the seconds waited; a wait beyond the end counts until the end.

        ``writes``: count writers only, or readers only.
        """
        wanted = {True, False} if writes is None else {writes}
        waits = [
            min(turn.got_in, self.end) - turn.asked
            for turn in self.turns
            if turn.writes in wanted
            and turn.asked < self.end
            and turn.got_in >= self.begin
        ]
        return waits + [
            self.end - asked for writes, asked in self.waiting if writes in wanted
        ]


def take_turns(round_: Round[Any], jobs: Sequence[Job]) -> Window:
    """Run the jobs side by side, all in the same window."""
    with round_.workers(*jobs) as workers:
        warm_up = QUICK_WARM_UP if round_.quick else WARM_UP
        begin = time.monotonic() + START_SECONDS + warm_up
        for worker in workers:
            worker.send(begin)
        of_clients = [worker.process_id for worker in workers]
        of_server = round_.server.process_ids()
        end = begin + jobs[0].seconds
        _sleep_until(begin)
        client_cpu, server_cpu = _cpu_of(of_clients), _cpu_of(of_server)
        _sleep_until(end)
        client_cpu = _cpu_of(of_clients) - client_cpu
        server_cpu = _cpu_of(of_server) - server_cpu
        replies = [worker.receive("turns", LAST_TURN_TIMEOUT) for worker in workers]
    turns = [
        Turn((number, task), bool(writes), *rest)
        for number, reply in enumerate(replies)
        for task, writes, *rest in reply["turns"]
    ]
    # In the order of the grants, over all processes: overlaps and fences show.
    turns.sort(key=lambda turn: turn.got_in)
    return Window(
        begin,
        end,
        replies[0]["wall"],
        turns,
        waiting=[
            (bool(writes), asked)
            # A peer in another language has none: its tasks wait until they get in.
            for reply in replies
            for _, writes, asked in reply.get("waiting", ())
        ],
        client_cpu=client_cpu if MEASURABLE else None,
        server_cpu=server_cpu if MEASURABLE and of_server else None,
    )


def _cpu_of(processes: list[int]) -> float:
    return cpu_seconds(processes) if MEASURABLE else 0.0


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def fair_bars(ours: Of, scenario: str) -> tuple[Bar, ...]:
    """Return the bars of the turns at one resource: nobody waits long, fences rise."""
    return (
        Bar(
            scenario,
            "longest wait, of the mean wait",
            ours.median(scenario, LONGEST),
            5.0,
        ),
        Minimum(
            scenario,
            "every cycle its own rising fence",
            ours.least(scenario, RISING),
            1.0,
        ),
    )


def turns_at_one_key(
    round_: Round[Any], tasks: Sequence[int], seconds: float
) -> tuple[Window, Measured]:
    """Measure the turns at one resource, of so many tasks in each process.

    In a quick round each process has two.
    """
    if round_.quick:
        tasks = [2] * len(tasks)
    jobs = [
        round_.job("take_turns", tasks=count, key="order/1", seconds=seconds)
        for count in tasks
    ]
    window = take_turns(round_, jobs)
    return window, mutex_turns(window, tasks)


def own_key_cycles(
    round_: Round[Any], tasks: int, key: str, seconds: float
) -> Measured:
    """Measure the cycles a second of tasks that each have a resource of their own."""
    job = round_.job("take_turns", tasks=tasks, key=key, seconds=seconds)
    window = take_turns(round_, [job])
    return {CYCLES: [len(window.counted()) / seconds]} | window.cpu_a_cycle()


def mutex_turns(window: Window, tasks: Sequence[int]) -> Measured:
    """Measure a mutex: how many cycles, by which tasks, after which waits.

    Args:
        window: Turns that may not overlap.
        tasks: How many tasks each process has.
    """
    for before, after in pairwise(window.turns):
        assert before.left <= after.got_in, "two tasks held the lock at the same time"
    counted, waits = window.counted(), window.waits()
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
        TURNS: sorted(map(float, turns)),
        **window.cpu_a_cycle(),
    }
    # Floors and most peers have no fence, and no line about it in the table.
    fences = [turn.fence for turn in window.turns]
    if any(fences):
        measured[RISING] = [float(all(a < b for a, b in pairwise(fences)))]
    return measured
