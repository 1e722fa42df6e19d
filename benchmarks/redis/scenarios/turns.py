"""S2, S4, S5: tasks take turns for a while, in one process or in several."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

from benchmarks.redis.adapters import BLPOP, FLOOR, MEMORY, OURS, REDIS_PY
from benchmarks.redis.server import Server
from benchmarks.shared.jobs import Job
from benchmarks.shared.scenario import Measured, Round, Scenario
from benchmarks.shared.turns import CYCLES, Turn, judged, run

ONE_CORE = "cycles/s, all on one core"
REQUESTS = "requests a cycle"
WRITER_P99 = "writer's wait p99, ms"


def measure(
    round_: Round[Server], *, processes: int, tasks: int, section: float, seconds: float
) -> Measured:
    """A mutex: how many cycles, who got them, who waited how long, at what price."""
    seconds = 0.6 if round_.quick else seconds
    jobs = [
        round_.job("turns", tasks=tasks, section=section, seconds=seconds)
        for _ in range(processes)
    ]
    window = run(round_, jobs)
    return judged(window, [tasks] * processes) | _requests(round_, jobs)


def measure_apart(round_: Round[Server]) -> Measured:
    """Nothing to do inside: then all depends on where client and server run.

    On one core a wake-up costs little, from core to core much, and left alone they
    change places as they like: raw BLPOP makes 10,000 cycles a second or 30,000. So
    they are put on a core each, as if on two machines; then, for comparison, on one.
    """
    seconds = 0.6 if round_.quick else 2.0
    job = round_.job("turns", tasks=50, seconds=seconds)
    if round_.core is None or round_.other_core is None:
        return judged(run(round_, [job]), [50]) | _requests(round_, [job])
    job = replace(job, core=round_.core)
    with round_.server.pinned(round_.other_core):
        measured = judged(run(round_, [job]), [50]) | _requests(round_, [job])
    round_.server.empty()
    with round_.server.pinned(round_.core):
        counted = run(round_, [job]).counted()
    return measured | {ONE_CORE: [len(counted) / seconds]}


def _requests(round_: Round[Server], jobs: list[Job]) -> Measured:
    """In a run of its own, as listening to the server slows it down."""
    round_.server.empty()
    with round_.server.overheard() as heard:
        window = run(round_, jobs)
    begin, end = window.begin + window.wall, window.end + window.wall
    return {REQUESTS: [heard.between(begin, end) / max(1, len(window.counted()))]}


def measure_keys(round_: Round[Server]) -> Measured:
    """Every task has a key of its own."""
    seconds = 0.6 if round_.quick else 2.0
    job = round_.job("turns", tasks=100, key="key-{task}", seconds=seconds)
    return {CYCLES: [len(run(round_, [job]).counted()) / seconds]}


def measure_mixed(round_: Round[Server]) -> Measured:
    """Nine turns of ten are reads, which share; every task does both.

    One write and the nine reads that come with it take two sections' time at least:
    2 ms each make 2,500 cycles/s. Whoever is not reading then waits to write: of 50
    tasks some 40, each for 40 times those 4 ms.
    """
    seconds = 0.6 if round_.quick else 3.0
    return _readers_and_writers(
        round_,
        round_.job("turns", tasks=50, section=0.002, reads=0.9, seconds=seconds),
    )


def measure_roles(round_: Round[Server]) -> Measured:
    """One task of ten writes, the others read."""
    seconds = 0.6 if round_.quick else 3.0
    return _readers_and_writers(
        round_,
        round_.job("turns", tasks=50, section=0.002, writers=5, seconds=seconds),
    )


def _readers_and_writers(round_: Round[Server], job: Job) -> Measured:
    window = run(round_, [job])
    _check_exclusion(window.turns)
    writes = [turn for turn in window.turns if turn.writes]
    reads = [turn for turn in window.turns if not turn.writes]
    measured = {CYCLES: [len(window.counted()) / job.seconds]}
    for who, turns in (("writer", writes), ("reader", reads)):
        waits = window.waits(turns)
        measured[f"{who}'s wait p50, ms"] = [1e3 * statistics.median(waits)]
        measured[f"{who}'s wait p99, ms"] = [
            1e3 * statistics.quantiles(waits, n=100, method="inclusive")[98]
        ]
    return measured


def _check_exclusion(turns: list[Turn]) -> None:
    readers_out = writer_out = 0.0
    for turn in turns:
        assert writer_out <= turn.got_in, "somebody came in beside a writer"
        if turn.writes:
            assert readers_out <= turn.got_in, "a writer came in beside a reader"
            writer_out = turn.left
        else:
            readers_out = max(readers_out, turn.left)


S2: Scenario[Server] = Scenario(
    "S2",
    "100 tasks, 100 keys, one process",
    tuple((peer, "asyncio") for peer in (FLOOR, OURS, REDIS_PY)),
    measure_keys,
)
_PEERS = tuple((peer, "asyncio") for peer in (BLPOP, OURS, REDIS_PY))
S4A: Scenario[Server] = Scenario(
    "S4a",
    "50 tasks of one process, one key, nothing to do inside",
    _PEERS,
    measure_apart,
)
S4B: Scenario[Server] = Scenario(
    "S4b",
    "50 tasks of one process, one key, 2 ms inside",
    _PEERS,
    partial(measure, processes=1, tasks=50, section=0.002, seconds=4.0),
)
S4D: Scenario[Server] = Scenario(
    "S4d",
    "4 processes of 16 tasks, one key, 2 ms inside",
    _PEERS,
    partial(measure, processes=4, tasks=16, section=0.002, seconds=4.0),
)
S5: Scenario[Server] = Scenario(
    "S5",
    "50 tasks of one process, 90 % of each one's turns are reads, 2 ms inside",
    ((OURS, "asyncio"), (MEMORY, "asyncio")),
    measure_mixed,
)
S5R: Scenario[Server] = Scenario(
    "S5r",
    "45 tasks that read, 5 that write, one process, 2 ms inside",
    ((OURS, "asyncio"), (MEMORY, "asyncio")),
    measure_roles,
)
