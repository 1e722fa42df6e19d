"""The scenarios on Redis. A new one is a function and a line in ``SCENARIOS``."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace
from functools import partial

from benchmarks.harness.measures import (
    CYCLES,
    HAND_OVER_TITLE,
    WAITERS_TITLE,
    Turn,
    cycle_times,
    hand_overs,
    held_memory,
    mutex_turns,
    number_waiting,
    own_key_cycles,
    take_turns,
    waiters,
)
from benchmarks.harness.scenario import Job, Measured, Round, Scenario, on_asyncio
from benchmarks.redis.adapters import (
    BLPOP,
    FLOOR,
    LEASE_KEYS,
    MEMORY,
    OURS,
    REDIS_PY,
    REDIS_PY_FAST,
    RUEIDIS,
)
from benchmarks.redis.server import Server

ALONE_CYCLES = 4000
CYCLE = "cycle p50, µs"


def measure_alone(round_: Round[Server]) -> Measured:
    """Measure the cycles of one task; client and server share a core.

    A wake-up from core to core would cost more than a cycle.
    """
    cycles = round_.count(50, ALONE_CYCLES)
    with round_.server.pinned(round_.core):
        took = cycle_times(round_, cycles, "mutex", "key")
    measured: Measured = {
        CYCLE: [statistics.median(took)],
        "cycle p95, µs": [statistics.quantiles(took, n=20)[18]],
    }
    job = round_.job("take_turns", seconds=round_.amount(0.2, 1.0))
    return measured | _requests(round_, [job])


def measure_own_keys(round_: Round[Server]) -> Measured:
    """Measure tasks of which each has a key of its own."""
    seconds = round_.amount(0.6, 2.0)
    return own_key_cycles(round_, 100, "key-{task}", seconds)


# ----------------------------------------------------------- many tasks want one key

ONE_CORE = "cycles/s, all on one core"
REQUESTS_A_CYCLE = "requests a cycle"
COUNTED_SECONDS = 1.5
"""Seconds in which requests are counted: their number does not depend on the time."""
COUNTED_REPETITIONS = 2
"""Repetitions in which they are counted: it hardly differs from one to the other."""


def measure_one_key(round_: Round[Server], *, one_core: bool = True) -> Measured:
    """Measure turns with nothing to do inside, client and server on a core each.

    Left alone, client and server change their cores as they like, and raw BLPOP makes
    10,000 cycles a second or 30,000: a wake-up on one core costs little, one from core
    to core much. So each gets a core, as if on two machines; with ``one_core`` the
    figure with both on one is added for comparison.
    """
    seconds = round_.amount(0.6, 2.0)
    job = round_.job("take_turns", tasks=50, seconds=seconds)
    if round_.core is None or round_.other_core is None:
        window = take_turns(round_, [job])
        return mutex_turns(window, [50]) | _requests(round_, [job])
    job = replace(job, core=round_.core)
    with round_.server.pinned(round_.other_core):
        window = take_turns(round_, [job])
        measured = mutex_turns(window, [50]) | _requests(round_, [job])
    if not one_core:
        return measured
    round_.server.empty()
    with round_.server.pinned(round_.core):
        counted = take_turns(round_, [job]).counted()
    return measured | {ONE_CORE: [len(counted) / seconds]}


def measure_held_key(round_: Round[Server], *, processes: int, tasks: int) -> Measured:
    """Measure turns of 2 ms: how many, by which tasks, after which waits."""
    seconds = round_.amount(0.6, 4.0)
    jobs = [
        round_.job("take_turns", tasks=tasks, section=0.002, seconds=seconds)
        for _ in range(processes)
    ]
    window = take_turns(round_, jobs)
    return mutex_turns(window, [tasks] * processes) | _requests(round_, jobs)


def _requests(round_: Round[Server], jobs: list[Job]) -> Measured:
    if round_.repetition >= COUNTED_REPETITIONS:
        return {}
    # In a run of its own: MONITOR slows the server down.
    round_.server.empty()
    jobs = [replace(job, seconds=min(job.seconds, COUNTED_SECONDS)) for job in jobs]
    with round_.server.monitored() as requests:
        window = take_turns(round_, jobs)
    begin, end = window.begin + window.wall, window.end + window.wall
    count = requests.between(begin, end)
    turns = len(window.counted())
    return {REQUESTS_A_CYCLE: [count / turns]} if turns else {}


# --------------------------------------------------------------- readers and writers

WRITER_P99 = "writer's wait p99, ms"


def measure_mixed_tasks(round_: Round[Server]) -> Measured:
    """Measure tasks that all read and write: nine turns of ten are reads.

    One write and its nine reads take the time of two sections at least: 2 ms each make
    2,500 cycles/s. Of 50 tasks some 40 wait for writing, each for 40 times those 4 ms.
    """
    seconds = round_.amount(0.6, 3.0)
    job = round_.job("take_turns", tasks=50, section=0.002, reads=0.9, seconds=seconds)
    return _readers_and_writers(round_, job)


def measure_fixed_roles(round_: Round[Server]) -> Measured:
    """Measure tasks of which one in ten writes, and the others read."""
    seconds = round_.amount(0.6, 3.0)
    job = round_.job("take_turns", tasks=50, section=0.002, writers=5, seconds=seconds)
    return _readers_and_writers(round_, job)


def _readers_and_writers(round_: Round[Server], job: Job) -> Measured:
    window = take_turns(round_, [job])
    _check_exclusion(window.turns)
    measured = {CYCLES: [len(window.counted()) / job.seconds]}
    for role, writes in (("writer", True), ("reader", False)):
        waits = window.waits(writes=writes)
        if len(waits) < 2:
            message = f"no {role} got in while it was measured"
            raise RuntimeError(message)
        measured[f"{role}'s wait p50, ms"] = [1e3 * statistics.median(waits)]
        measured[f"{role}'s wait p99, ms"] = [
            1e3 * statistics.quantiles(waits, n=100, method="inclusive")[98]
        ]
    return measured


def _check_exclusion(turns: list[Turn]) -> None:
    readers_out = writer_out = 0.0
    for turn in turns:
        assert writer_out <= turn.got_in, "a task came in beside a writer"
        if turn.writes:
            assert readers_out <= turn.got_in, "a writer came in beside a reader"
            writer_out = turn.left
        else:
            readers_out = max(readers_out, turn.left)


# --------------------------------------------------------------- holders and waiters

REQUESTS = "requests/s"
SERVER_MEMORY_OF_WAITER = "server's memory, kB a waiter"
DRAIN_TIMEOUT = 5.0
"""Seconds after which waiters are given up where their number varies: some peers need
minutes, and their figure is how many were served."""
LATE = "after the lease's end, ms"
KILLED_HOLDERS, QUICK_KILLED_HOLDERS = 8, 2
KILLED_LEASE = 1.0


def measure_waiters(round_: Round[Server]) -> Measured:
    """Measure a thousand tasks that wait, by requests, connections and drain."""
    return waiters(round_, partial(_requests_of_waiters, round_), quick=(0.3, 0.5))


def measure_number_of_waiters(count: int, round_: Round[Server]) -> Measured:
    """Measure so many waiters in the same way, and the server's memory for them."""
    before = round_.server.memory()

    def watch(seconds: float) -> Measured:
        grown = round_.server.memory() - before
        waiting = number_waiting(round_, count)
        memory: Measured = {SERVER_MEMORY_OF_WAITER: [grown / waiting / 1e3]}
        return memory | _requests_of_waiters(round_, seconds)

    return waiters(
        round_, watch, quick=(0.3, 0.5), count=count, drain_timeout=DRAIN_TIMEOUT
    )


def measure_held_memory(round_: Round[Server]) -> Measured:
    """Measure the memory of a held lock, in the client and in the server."""
    return held_memory(round_, round_.server.memory, "kept-{task}")


def _requests_of_waiters(round_: Round[Server], seconds: float) -> Measured:
    with round_.server.monitored() as requests:
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
    return {REQUESTS: [requests.between(begin, end) / seconds]}


def measure_killed_holders(round_: Round[Server]) -> Measured:
    """Measure how late waiters enter after the leases of holders that were killed.

    Each holder is a process with a key of its own, killed at a random moment. The end
    of its lease is read from the server after the kill: the key's own expiry.
    """
    chance = random.Random(round_.seed)
    count = round_.count(QUICK_KILLED_HOLDERS, KILLED_HOLDERS)
    keys = [f"key-{number}" for number in range(count)]
    jobs = [round_.job("hold", key=key, lease=KILLED_LEASE) for key in keys]
    waiter = round_.job("wait_for_killed", tasks=count, lease=KILLED_LEASE)
    ends: dict[str, float] = {}
    with round_.workers(*jobs) as holders, round_.workers(waiter) as (waiting,):
        for holder in holders:
            holder.send("go")
        for holder in holders:
            holder.receive("got_in")
        waiting.send("go")
        waiting.receive("asked")
        for key, holder in zip(keys, holders, strict=True):
            time.sleep(chance.uniform(0.02, 0.15))
            holder.kill()
            at = round_.server.expiry(LEASE_KEYS[round_.peer] % key)
            # No expiry: the lease ended before the kill, and there is nothing to time.
            if at is not None:
                ends[key] = at
        entered = {}
        for _ in keys:
            granted = waiting.receive("key")
            entered[granted["key"]] = granted["got_in"]
    return {LATE: [1e3 * (entered[key] - at) for key, at in ends.items()]}


# --------------------------------------------------------------------- large numbers

READER_BESIDE_FEW = "reader's cycle beside 1 reader, µs"
READER_BESIDE_MANY = "reader's cycle beside 10,000 readers, µs"
READERS_IN = "500 waiting readers in, ms"
UNRENEWED_LEASE = 600.0
"""Seconds; longer than the measurement, so that no renewal comes in between."""
ANY_OF_FEW = "cycle of any among 10, µs"
ANY_OF_MANY = "cycle of any among 10,000, µs"
HELD_SHARE = "10,000 locks held, % of a core"


def measure_many_readers(round_: Round[Server]) -> Measured:
    """Measure a reader beside one and beside many others, and many that enter."""
    many, batch = (100, 20) if round_.quick else (10_000, 500)
    job = round_.job("admit_readers", tasks=batch, section=0.1)
    with round_.workers(job) as (worker,):
        worker.send("go")
        took = worker.receive("took")["took"]
    return {
        READER_BESIDE_FEW: [_cycle_beside(round_, 1)],
        READER_BESIDE_MANY: [_cycle_beside(round_, many)],
        READERS_IN: [1e3 * took],
    }


def _cycle_beside(round_: Round[Server], readers: int) -> float:
    round_.server.empty()
    cycles = round_.count(50, 1000)
    job = round_.job(
        "hold", mode="reader", tasks=readers, key="shared", lease=UNRENEWED_LEASE
    )
    with round_.workers(job) as (holder,):
        holder.send("go")
        holder.receive("got_in")
        with round_.server.pinned(round_.core):
            took = cycle_times(round_, cycles, "reader", "shared")
        holder.kill()
    return statistics.median(took)


def measure_any_of_set(round_: Round[Server]) -> Measured:
    """Measure taking any mutex of a small and of a large set, half of them held."""
    many = 100 if round_.quick else 10_000
    return {
        ANY_OF_FEW: [_cycle_among(round_, 10)],
        ANY_OF_MANY: [_cycle_among(round_, many)],
    }


def _cycle_among(round_: Round[Server], members: int) -> float:
    round_.server.empty()
    round_.server.fill("set", members)
    cycles = round_.count(50, 2000)
    with round_.server.pinned(round_.core):
        return statistics.median(cycle_times(round_, cycles, "any", "set"))


def measure_held_locks(round_: Round[Server]) -> Measured:
    """Measure the processor time of holding many locks for two leases."""
    locks, lease = (100, 3.0) if round_.quick else (10_000, 30.0)
    job = round_.job(
        "hold_many", tasks=locks, key="kept-{task}", lease=lease, seconds=2 * lease
    )
    with round_.workers(job) as (holder,):
        holder.send("go")
        return {HELD_SHARE: [100 * holder.receive("share")["share"]]}


_TURNS = on_asyncio(BLPOP, OURS, REDIS_PY)
SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "alone",
            "one task, acquire and release, one core",
            (
                *on_asyncio(FLOOR, OURS, REDIS_PY, BLPOP),
                *((peer, "uvloop") for peer in (FLOOR, OURS, REDIS_PY)),
                (OURS, "trio"),
            ),
            measure_alone,
        ),
        Scenario(
            "own-keys",
            "100 tasks, 100 keys, one process",
            on_asyncio(FLOOR, OURS, REDIS_PY),
            measure_own_keys,
        ),
        Scenario(
            "hand-over",
            HAND_OVER_TITLE,
            on_asyncio(BLPOP, OURS, RUEIDIS, REDIS_PY, REDIS_PY_FAST),
            hand_overs,
        ),
        Scenario(
            "one-key",
            "50 tasks of one process, one key, nothing to do inside",
            _TURNS,
            measure_one_key,
        ),
        Scenario(
            "one-held-key",
            "50 tasks of one process, one key, 2 ms inside",
            _TURNS,
            partial(measure_held_key, processes=1, tasks=50),
        ),
        Scenario(
            "one-key-processes",
            "4 processes of 16 tasks, one key, 2 ms inside",
            _TURNS,
            partial(measure_held_key, processes=4, tasks=16),
        ),
        Scenario(
            "mixed-tasks",
            "50 tasks of one process, 90 % of each one's turns are reads, 2 ms inside",
            on_asyncio(OURS, MEMORY),
            measure_mixed_tasks,
        ),
        Scenario(
            "fixed-roles",
            "45 tasks that read, 5 that write, one process, 2 ms inside",
            on_asyncio(OURS, MEMORY),
            measure_fixed_roles,
        ),
        Scenario(
            "waiters",
            WAITERS_TITLE,
            on_asyncio(BLPOP, OURS, RUEIDIS, REDIS_PY),
            measure_waiters,
        ),
        Scenario(
            "killed-holders",
            "holders killed, lease of 1 s",
            on_asyncio(OURS, REDIS_PY, REDIS_PY_FAST),
            measure_killed_holders,
        ),
        Scenario(
            "many-readers", "readers inside", on_asyncio(OURS), measure_many_readers
        ),
        Scenario(
            "any-of-set", "any mutex of a set", on_asyncio(OURS), measure_any_of_set
        ),
        Scenario(
            "held-locks", "10,000 locks are kept", on_asyncio(OURS), measure_held_locks
        ),
    )
}
