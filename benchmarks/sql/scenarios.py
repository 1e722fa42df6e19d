"""The scenarios on SQL databases. A new one is a function and a ``Scenario`` below."""

from __future__ import annotations

import statistics

from benchmarks.harness.measures import (
    HAND_OVER_TITLE,
    TASKS_OF_PROCESSES,
    WAITERS_TITLE,
    cycle_times,
    hand_overs,
    own_key_cycles,
    turns_at_one_key,
    waiters,
)
from benchmarks.harness.scenario import Measured, Round, Scenario, on_asyncio
from benchmarks.sql.adapters import (
    ADVISORY,
    DLOCK,
    FLOOR,
    GET_LOCK,
    MARIADB,
    MARIADB_OURS,
    MARIADB_ROWS,
    MARIADB_WOKEN,
    MYSQL,
    MYSQL_GET_LOCK,
    MYSQL_OURS,
    MYSQL_ROWS,
    NOTIFY,
    OURS,
    POSTGRESQL,
    ROWS,
    SQLITE,
    SQLITE_OURS,
)
from benchmarks.sql.server import Server

ALONE_CYCLES = 1500
CYCLE = "cycle p50, µs"
STATEMENTS = "statements/s"
TASKS = 64


def measure_alone(round_: Round[Server]) -> Measured:
    """Measure the cycles of one task."""
    cycles = round_.count(50, ALONE_CYCLES)
    took = cycle_times(round_, cycles, "mutex", "order/1")
    return {
        CYCLE: [statistics.median(took)],
        "cycle p95, µs": [statistics.quantiles(took, n=20)[18]],
    }


def measure_own_keys(round_: Round[Server]) -> Measured:
    """Measure tasks of which each has a resource of its own."""
    return own_key_cycles(round_, TASKS, "order/{task}", round_.amount(0.4, 4.0))


def measure_one_key(round_: Round[Server]) -> Measured:
    """Measure the turns at one resource, of the tasks of four processes."""
    seconds = round_.amount(1.0, 4.0)
    return turns_at_one_key(round_, TASKS_OF_PROCESSES, seconds)[1]


def measure_waiters(round_: Round[Server]) -> Measured:
    """Measure a thousand tasks that wait, by statements, connections and drain."""

    def watch(seconds: float) -> Measured:
        return {STATEMENTS: [round_.server.statements(round_.peer, seconds) / seconds]}

    return waiters(round_, watch)


SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "alone",
            "one task, acquire and release",
            (*on_asyncio(*POSTGRESQL, *MARIADB, *MYSQL, *SQLITE), (OURS, "trio")),
            measure_alone,
        ),
        Scenario(
            "own-keys",
            f"{TASKS} tasks, {TASKS} keys, one process",
            on_asyncio(FLOOR, OURS, ADVISORY),
            measure_own_keys,
        ),
        Scenario(
            "one-key-processes",
            "50 tasks of 4 processes, one key, nothing to do inside",
            on_asyncio(OURS, ADVISORY, DLOCK, MARIADB_OURS, MYSQL_OURS),
            measure_one_key,
        ),
        Scenario(
            "waiters",
            WAITERS_TITLE,
            on_asyncio(OURS, MARIADB_OURS, MYSQL_OURS),
            measure_waiters,
        ),
        Scenario(
            "hand-over",
            HAND_OVER_TITLE,
            on_asyncio(
                *(OURS, ROWS, ADVISORY, NOTIFY, DLOCK),
                *(MARIADB_OURS, MARIADB_WOKEN, MARIADB_ROWS, GET_LOCK),
                *(MYSQL_OURS, MYSQL_ROWS, MYSQL_GET_LOCK, SQLITE_OURS),
            ),
            hand_overs,
        ),
    )
}
