"""What the page shows: scenarios of all suites, and who takes part in each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.cassandra import adapters as cassandra
from benchmarks.cassandra.__main__ import suite as cassandra_suite
from benchmarks.etcd import adapters as etcd
from benchmarks.etcd.__main__ import suite as etcd_suite
from benchmarks.harness.measures import HAND_OVER_TITLE, WAITERS, hand_overs
from benchmarks.harness.report import Verdict, verdicts
from benchmarks.harness.scenario import Scenario, on_asyncio
from benchmarks.harness.suite import Suite
from benchmarks.local import adapters as local
from benchmarks.local.__main__ import suite as local_suite
from benchmarks.local.scenarios import Folder
from benchmarks.page.data import Data
from benchmarks.redis import adapters as redis
from benchmarks.redis.__main__ import suite as redis_suite
from benchmarks.redis.scenarios import (
    measure_held_memory,
    measure_number_of_waiters,
    measure_one_key,
)
from benchmarks.redis.server import Server as RedisServer
from benchmarks.sql import adapters as sql
from benchmarks.sql.__main__ import suite as sql_suite

NUMBERS_OF_WAITERS = (1, 10, 100, WAITERS)
COUNTED_REPETITIONS = 2
"""Of a few waiters and of locks that are only held: counts and sizes hardly differ from
one repetition to the other."""
LONG_REPETITIONS = 3
"""Of 1,000 waiters and of killed holders, whose rounds are long and differ little."""
START_SECONDS = {
    "redis": 25.0,
    "sql": 15.0,
    "cassandra": 30.0,
    "etcd": 8.0,
    "files": 1.0,
}
"""How long each suite takes until its first round."""
ROUND_SECONDS: dict[str, dict[str, float]] = {
    "redis": {
        "alone": 2.5,
        "own-keys": 2.1,
        "hand-over": 5.9,
        "one-key": 3.5,
        "one-held-key": 4.5,
        "one-key-processes": 5.5,
        "mixed-tasks": 2.9,
        "fixed-roles": 2.8,
        "killed-holders": 3.7,
        "waiters-1": 4.0,
        "waiters-10": 4.1,
        "waiters-100": 4.6,
        "waiters": 6.7,
        "held-memory": 1.9,
    },
    "sql": {
        "alone": 1.9,
        "own-keys": 3.0,
        "one-key-processes": 3.8,
        "hand-over": 5.8,
    },
    "cassandra": {"alone": 5.0, "own-keys": 3.6, "one-key": 6.0, "hand-over": 6.5},
    "etcd": {
        "alone": 3.0,
        "own-keys": 3.0,
        "one-key": 4.0,
        "one-key-processes": 4.5,
        "hand-over": 5.9,
    },
    "files": {"alone": 0.5, "hand-over": 5.3},
}
"""How long a round usually takes on a quiet machine with two cores, for estimates."""
HELD_MEMORY = "held-memory"

REDIS_LOCKS = (
    *(redis.OURS, redis.REDIS_PY, redis.COREDIS, redis.POTTERY),
    *(redis.PYTHON_REDIS_LOCK, redis.REDISHILOK, redis.RUEIDIS, redis.REDISSON),
)
# As redis-py, these look from time to time: they are not in every scenario.
_LOOKING_LOCKS = (redis.COREDIS, redis.POTTERY)
_DIFFERENT_LOCKS = tuple(lock for lock in REDIS_LOCKS if lock not in _LOOKING_LOCKS)
_BLPOP_AND_LOCKS = (redis.BLPOP, *REDIS_LOCKS)
_BLPOP_AND_DIFFERENT = (redis.BLPOP, *_DIFFERENT_LOCKS)
_READERS_AND_WRITERS = (redis.OURS, redis.MEMORY, redis.REDISHILOK, redis.REDISSON)

REDIS_PEERS: dict[str, tuple[str, ...]] = {
    "alone": (redis.FLOOR, redis.BLPOP, *REDIS_LOCKS),
    "own-keys": (redis.FLOOR, *REDIS_LOCKS),
    "hand-over": _BLPOP_AND_LOCKS,
    "one-key": _BLPOP_AND_DIFFERENT,
    "one-held-key": _BLPOP_AND_DIFFERENT,
    "one-key-processes": _BLPOP_AND_DIFFERENT,
    "mixed-tasks": _READERS_AND_WRITERS,
    "fixed-roles": _READERS_AND_WRITERS,
    "killed-holders": _DIFFERENT_LOCKS,
}
SQL_PEERS: dict[str, tuple[str, ...]] = {
    "alone": (
        *(sql.FLOOR, sql.OURS, sql.ADVISORY, sql.DLOCK),
        *(sql.MARIADB_FLOOR, sql.MARIADB_OURS, sql.GET_LOCK, sql.MARIADB_DLOCK),
        *(sql.MYSQL_FLOOR, sql.MYSQL_OURS, sql.MYSQL_GET_LOCK),
        *(sql.SQLITE_FLOOR, sql.SQLITE_OURS),
    ),
    "own-keys": (sql.FLOOR, sql.OURS, sql.ADVISORY),
    "one-key-processes": (sql.OURS, sql.ADVISORY, sql.DLOCK, sql.MARIADB_OURS),
    "hand-over": (
        # sqlalchemy-dlock looks about once a second: two minutes of the run.
        *(sql.NOTIFY, sql.OURS, sql.ADVISORY),
        *(sql.MARIADB_OURS, sql.MARIADB_WOKEN, sql.GET_LOCK, sql.MYSQL_OURS),
        *(sql.SQLITE_FLOOR, sql.SQLITE_OURS),
    ),
}
CASSANDRA_PEERS: dict[str, tuple[str, ...]] = {
    "alone": (cassandra.FLOOR, cassandra.FLOOR_READ, cassandra.OURS),
    "own-keys": (cassandra.FLOOR, cassandra.OURS),
    "one-key": (cassandra.EAGER, cassandra.NAIVE, cassandra.OURS),
    "hand-over": (cassandra.NAIVE, cassandra.OURS, cassandra.WOKEN),
}
ETCD_PEERS: dict[str, tuple[str, ...]] = {
    "alone": (etcd.FLOOR, etcd.OURS, etcd.AETCD, etcd.KAZOO),
    "own-keys": (etcd.FLOOR, etcd.OURS, etcd.AETCD, etcd.KAZOO),
    "one-key": (etcd.OURS, etcd.AETCD, etcd.KAZOO),
    "one-key-processes": (etcd.OURS, etcd.AETCD, etcd.KAZOO),
    "hand-over": (etcd.MESSAGE, etcd.OURS, etcd.AETCD, etcd.KAZOO),
}
LOCAL_PEERS: dict[str, tuple[str, ...]] = {
    "alone": (
        *(local.FILE_SYNCED, local.FILE_MUTEX),
        *(local.FILE_FLOOR, local.FILE_MUTEX_UNSYNCED, local.FILELOCK),
        *(local.ASYNCIO_LOCK, local.ANYIO_LOCK, local.MEMORY_MUTEX),
    ),
}
FILES_BETWEEN_PROCESSES = (
    *(local.FILE_FLOOR, local.FILE_MUTEX, local.FILE_MUTEX_UNSYNCED),
    local.FILELOCK,
)

SUITES: dict[str, Callable[[], Suite[Any]]] = {
    "redis": lambda: _with_numbers_of_waiters(_chosen(redis_suite(), REDIS_PEERS)),
    "sql": lambda: _chosen(sql_suite(), SQL_PEERS),
    "cassandra": lambda: _chosen(cassandra_suite(), CASSANDRA_PEERS),
    "etcd": lambda: _chosen(etcd_suite(), ETCD_PEERS),
    "files": lambda: _with_hand_over(_chosen(local_suite(), LOCAL_PEERS)),
}
"""The suites of the page, by the name that ``--only`` takes."""


def judged(data: Data) -> dict[str, list[Verdict]]:
    """Return the verdict of each bar, by suite; the page does not measure all."""
    return {
        name: list(verdicts(suite().bars, data.figures(name)))
        for name, suite in SUITES.items()
    }


def waiters_scenario(count: int) -> str:
    """Return the name of the scenario in which so many tasks wait."""
    return "waiters" if count == WAITERS else f"waiters-{count}"


def round_seconds(suite: str, scenario: str) -> float:
    """Return how long a round usually takes on a quiet machine with two cores."""
    return ROUND_SECONDS[suite][scenario]


def run_order() -> dict[str, tuple[str, ...]]:
    """Return the scenarios of each suite, in the order of the run.

    A time limit leaves out the last ones: they belong to no goal.
    """
    names = scenario_names()
    last = (*map(waiters_scenario, NUMBERS_OF_WAITERS[:-1]), HELD_MEMORY)
    goals = tuple(name for name in names["redis"] if name not in last)
    others = {suite: names[suite] for suite in names if suite != "redis"}
    return others | {"redis": goals + last}


def scenario_names() -> dict[str, tuple[str, ...]]:
    """Return the scenarios of each suite, in the order of the page."""
    others = (*map(waiters_scenario, NUMBERS_OF_WAITERS), HELD_MEMORY)
    return {
        "redis": (*REDIS_PEERS, *others),
        "sql": tuple(SQL_PEERS),
        "cassandra": tuple(CASSANDRA_PEERS),
        "etcd": tuple(ETCD_PEERS),
        "files": (*LOCAL_PEERS, "hand-over"),
    }


def _chosen(suite: Suite[Any], peers: dict[str, tuple[str, ...]]) -> Suite[Any]:
    """Return the suite with these scenarios and peers, on asyncio."""
    scenarios = {
        name: replace(suite.scenarios[name], entrants=on_asyncio(*their))
        for name, their in peers.items()
    }
    everyone = tuple({peer: None for their in peers.values() for peer in their})
    return replace(suite, peers=everyone, scenarios=scenarios, loops=("asyncio",))


def _with_hand_over(suite: Suite[Folder]) -> Suite[Folder]:
    """Return the suite with the same hand-over as the other suites have."""
    scenario = Scenario[Folder](
        "hand-over",
        HAND_OVER_TITLE,
        on_asyncio(*FILES_BETWEEN_PROCESSES),
        hand_overs,
    )
    peers = tuple(dict.fromkeys((*suite.peers, *FILES_BETWEEN_PROCESSES)))
    scenarios = suite.scenarios | {scenario.name: scenario}
    return replace(suite, peers=peers, scenarios=scenarios)


def _with_numbers_of_waiters(suite: Suite[RedisServer]) -> Suite[RedisServer]:
    others = [
        Scenario(
            waiters_scenario(count),
            f"tasks of one process that wait for one key: {count}",
            on_asyncio(
                *(_BLPOP_AND_LOCKS if count == WAITERS else _BLPOP_AND_DIFFERENT)
            ),
            partial(measure_number_of_waiters, count),
            LONG_REPETITIONS if count == WAITERS else COUNTED_REPETITIONS,
        )
        for count in NUMBERS_OF_WAITERS
    ]
    held = Scenario(
        HELD_MEMORY,
        "5,000 locks of one process are held",
        on_asyncio(*REDIS_LOCKS),
        measure_held_memory,
        COUNTED_REPETITIONS,
    )
    # The second figure of this scenario, with all on one core, has no place there.
    one_key = replace(
        suite.scenarios["one-key"], measure=partial(measure_one_key, one_core=False)
    )
    killed = replace(
        suite.scenarios["killed-holders"], most_repetitions=LONG_REPETITIONS
    )
    scenarios = suite.scenarios | {
        each.name: each for each in (one_key, killed, *others, held)
    }
    return replace(suite, scenarios=scenarios)
