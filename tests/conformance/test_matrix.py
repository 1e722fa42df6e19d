"""Every backend runs every case that applies, on every loop; nothing is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import (
    ALL_CASES,
    Cases,
    ConformanceSuite,
    Harness,
    StoreLocation,
)
from aiorwlock_remote.testing.conformance.cases import cancellation
from aiorwlock_remote.testing.conformance.cases.cancellation import (
    NativeCancellationCases,
)
from tests.conformance.client_cases import CLIENT_CASES
from tests.conformance.stores.memory import MemoryHarness
from tests.conformance.test_cassandra import TestCassandra as Cassandra
from tests.conformance.test_cassandra_published import (
    TestPublishedCassandra as PublishedCassandra,
)
from tests.conformance.test_client import TestClient as Client
from tests.conformance.test_client import TestClientOfServer as ClientOfServer
from tests.conformance.test_cluster import TestCluster as Cluster
from tests.conformance.test_etcd import TestEtcd as Etcd
from tests.conformance.test_files import TestFiles as Files
from tests.conformance.test_hinted import (
    TestCutCassandra as CutCassandra,
)
from tests.conformance.test_hinted import (
    TestCutMariadb as CutMariadb,
)
from tests.conformance.test_hinted import (
    TestCutOracle as CutOracle,
)
from tests.conformance.test_hinted import (
    TestHintedCassandra as HintedCassandra,
)
from tests.conformance.test_hinted import (
    TestHintedMariadb as HintedMariadb,
)
from tests.conformance.test_hinted import (
    TestHintedOracle as HintedOracle,
)
from tests.conformance.test_mariadb import TestMariadb as Mariadb
from tests.conformance.test_memory import TestMemory as Memory
from tests.conformance.test_mysql import TestMysql as Mysql
from tests.conformance.test_oracle import TestOracle as Oracle
from tests.conformance.test_oracle_12_2 import TestOracle122 as Oracle122
from tests.conformance.test_oracle_23ai import TestOracle23 as Oracle23
from tests.conformance.test_oracle_pool import TestOraclePool as OraclePool
from tests.conformance.test_postgresql import TestPostgresql as Postgresql
from tests.conformance.test_postgresql_pooled import (
    TestPooledPostgresql as PooledPostgresql,
)
from tests.conformance.test_redis import TestRedis as Redis
from tests.conformance.test_redis_client import TestLoopBoundClient as LoopBoundClient
from tests.conformance.test_redis_client import TestRedisClient as RedisClient
from tests.conformance.test_redis_pairs import TestRedisPairs as RedisPairs
from tests.conformance.test_redis_rights import TestRedisRights as RedisRights
from tests.conformance.test_redis_tls import TestRedisTls as RedisTls
from tests.conformance.test_sentinel import TestSentinel as Sentinel
from tests.conformance.test_sqlite import TestSqlite as Sqlite
from tests.loops import (
    ALL_IN_TURN,
    ASYNCIO_IN_TURN,
    CROWD_CASES,
    CROWD_CASES_ON,
    IN_TURN,
    LOOPS,
    SLEEPING,
    has_crowd,
    is_in_share,
    is_sleeper,
    turn_of,
)

ROOT = Path(__file__).parents[2]
EVERYWHERE = {
    "Admin",
    "BlockedLoop",
    "Cancellation",
    "Failing",
    "Close",
    "Crowd",
    "Declared",
    "Fairness",
    "Fence",
    "ForeignHistory",
    "History",
    "Lease",
    "Loss",
    "LostPermits",
    "Moves",
    "Mutex",
    "NativeCancellation",
    "OneNameOneLock",
    "Passing",
    "PublishedCalls",
    "RWLock",
    "Seat",
    "Semaphore",
    "Waiting",
    "Waking",
}
PUSHED = {"ForeignPushed", "Pushed"}
MATRIX: dict[type[ConformanceSuite], set[str]] = {
    **{
        suite: {"BadInput", "Client", "ClientPushed", "Multi"}
        for suite in (Client, ClientOfServer)
    },
    Memory: EVERYWHERE | PUSHED,
    Sqlite: EVERYWHERE | {"Process"},
    Files: EVERYWHERE | {"Process"},
    Cassandra: EVERYWHERE - {"Waking"} | {"Process"},  # it notifies nobody
    PublishedCassandra: EVERYWHERE - {"Waking"} | {"Process"},
    Cluster: EVERYWHERE | {"Process"},
    Etcd: EVERYWHERE | {"Process"},
    **dict.fromkeys(
        (Oracle, Oracle122, Oracle23), EVERYWHERE - {"Waking"} | {"Process"}
    ),
    Postgresql: EVERYWHERE | {"Process"} | PUSHED,
    Mariadb: EVERYWHERE - {"Waking"} | {"Process"},
    Mysql: EVERYWHERE - {"Waking"} | {"Process"},
    **dict.fromkeys(
        (HintedCassandra, HintedOracle, CutCassandra, CutOracle),
        EVERYWHERE | {"Process"},
    ),
    **dict.fromkeys((HintedMariadb, CutMariadb), EVERYWHERE | {"Process"} | PUSHED),
    PooledPostgresql: EVERYWHERE | {"Process"} | PUSHED,
    OraclePool: EVERYWHERE - {"Waking", "BlockedLoop"} | {"Process"},
    Redis: EVERYWHERE | {"Process"} | PUSHED,
    RedisClient: EVERYWHERE | {"Process"} | PUSHED,
    LoopBoundClient: EVERYWHERE - {"BlockedLoop"} | {"Process"} | PUSHED,
    RedisRights: EVERYWHERE | {"Process"} | PUSHED,
    RedisTls: EVERYWHERE | {"Process"} | PUSHED,
    RedisPairs: EVERYWHERE - {"ForeignHistory", "LostPermits", "Seat", "Semaphore"}
    | {"Pushed"},
    Sentinel: EVERYWHERE | {"Process"} | PUSHED,
}
# The others of their kind are run on both, and these in turn. `nox -s all_turns` runs
# all cases on all of these loops.
TURNS: dict[type[ConformanceSuite], tuple[str, ...]] = {
    **dict.fromkeys((Cassandra, Cluster, Etcd, Files), IN_TURN),
    **dict.fromkeys((Postgresql, PooledPostgresql), IN_TURN),
    Oracle: IN_TURN[::-1],
    **dict.fromkeys((Oracle122, Oracle23, OraclePool), IN_TURN),
    **dict.fromkeys((HintedCassandra, HintedMariadb, HintedOracle), IN_TURN),
    **dict.fromkeys((CutCassandra, CutMariadb, CutOracle), IN_TURN),
    **dict.fromkeys((RedisTls, Sentinel), IN_TURN),
    **dict.fromkeys((Mariadb, Mysql), ALL_IN_TURN),
    Redis: ASYNCIO_IN_TURN,
}
# The same, for the cases that wait for seconds.
SLEEPERS_TURNS: dict[type[ConformanceSuite], tuple[str, ...]] = {
    Sqlite: IN_TURN[::-1],
    Redis: ALL_IN_TURN,
}
# They share the cases with suites of the same store, or have a part of all.
SHARES: dict[type[ConformanceSuite], tuple[int, int]] = {
    RedisClient: (0, 2),
    LoopBoundClient: (1, 2),
    RedisRights: (0, 3),
    Oracle122: (0, 6),
    PooledPostgresql: (0, 2),
    **dict.fromkeys((Oracle23, RedisTls), (1, 3)),
    **dict.fromkeys((OraclePool, Sentinel), (2, 3)),
    HintedMariadb: (0, 8),
    Mysql: (1, 4),
    **dict.fromkeys((CutMariadb, PublishedCassandra), (1, 8)),
    HintedCassandra: (0, 8),
    CutCassandra: (5, 8),
    HintedOracle: (3, 8),
    CutOracle: (4, 8),
}
LOOP_NAMES = {str(loop.id) for loop in LOOPS}
# Each says why where it is run.
RUN_ON: dict[type[ConformanceSuite], set[str]] = {
    **{suite: {"asyncio", "trio"} for suite in MATRIX},
    # Their stores are run on both; a driver's pool and redis-py know nothing of trio.
    **{suite: {"asyncio"} for suite in (OraclePool, PooledPostgresql)},
    **{suite: {"asyncio"} for suite in (PublishedCassandra, RedisRights)},
    RedisPairs: {"trio"},
    **{suite: {"asyncio", "trio", "uvloop"} for suite in (Mariadb, Mysql, Redis)},
    RedisClient: {"asyncio"},
    LoopBoundClient: {"uvloop"},
}


def classes(suite: type[ConformanceSuite]) -> dict[str, type[Cases]]:
    """Return the case classes of a backend, by name."""
    inner = {name: value for name, value in vars(suite).items() if name[:4] == "Test"}
    return {name.removeprefix("Test"): value for name, value in inner.items()}


def methods(cases: type[Cases]) -> list[str]:
    """Return the cases of a class."""
    return [name for name in dir(cases) if name.startswith("test_")]


@pytest.mark.parametrize("suite", MATRIX, ids=lambda suite: suite.__name__)
def test_the_case_classes_that_a_backend_runs(suite: type[ConformanceSuite]) -> None:
    assert set(classes(suite)) == MATRIX[suite]


def test_a_backend_that_can_do_little_runs_less() -> None:
    class Modest(Harness):
        capabilities = Capability.NONE

        def fresh(self, folder: Path) -> StoreLocation:
            return StoreLocation(f"modest:///{folder}")

    class Suite(ConformanceSuite):
        harness = Modest()

    left_out = {"BlockedLoop", "ForeignHistory", "LostPermits", "Seat", "Waking"}
    assert set(classes(Suite)) == EVERYWHERE - left_out


def test_a_published_layout_is_proved_by_a_foreigner() -> None:
    class Boastful(MemoryHarness):
        capabilities = Capability.PUBLISHED_LAYOUT
        has_foreigner = False

    with pytest.raises(AssertionError, match="needs a foreigner"):
        type("Suite", (ConformanceSuite,), {"harness": Boastful()})


def test_the_times_of_a_slow_machine_are_longer_by_one_factor() -> None:
    class Slow(MemoryHarness):
        slowness = 3.0

    usual, slow = MemoryHarness(), Slow()
    for name in ("patience", "answers_in", "kept", "short"):
        before, after = getattr(usual, name), getattr(slow, name)
        assert after / slow.slowness == pytest.approx(before / usual.slowness)
    assert slow.grants_more == usual.grants_more


def test_uvloop_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [loop.id for loop in cancellation.native_loops()] == ["asyncio", "uvloop"]
    monkeypatch.setattr(cancellation, "find_spec", lambda name: name != "uvloop")
    assert [loop.id for loop in cancellation.native_loops()] == ["asyncio"]


def test_every_case_class_is_run_by_somebody() -> None:
    every = (*ALL_CASES, *CLIENT_CASES)
    named = {cases.__name__.removesuffix("Cases") for cases in every}
    assert set().union(*MATRIX.values()) == named


def test_the_suite_is_not_small() -> None:
    assert sum(len(methods(cases)) for cases in ALL_CASES) >= 60


def test_every_case_says_what_is_promised() -> None:
    silent = [
        f"{cases.__name__}.{name}"
        for cases in (*ALL_CASES, *CLIENT_CASES)
        for name in methods(cases)
        if not getattr(cases, name).__doc__
    ]
    assert silent == []


def test_every_combination_is_collected() -> None:
    collected = Counter(_collected())
    expected = {
        (suite.__name__, f"Test{kind}", name, loop)
        for suite in MATRIX
        for kind, cases in classes(suite).items()
        for name in methods(cases)
        for loop in _loops(suite, cases, f"Test{kind}", name)
    }
    assert set(collected) == expected


def test_crowds_are_run_on_every_loop() -> None:
    assert set(CROWD_CASES_ON.values()) == LOOP_NAMES
    assert set(CROWD_CASES_ON) <= {f"Test{suite.__name__[4:]}" for suite in MATRIX}
    for suite in MATRIX:
        if suite.__name__ in CROWD_CASES_ON:
            assert CROWD_CASES_ON[suite.__name__] in RUN_ON[suite]


def test_sleepers_are_run_on_both_loops() -> None:
    """By two stores whose steps are the same."""
    names = [
        (f"Test{kind}", cases, name)
        for kind, cases in classes(Sqlite).items()
        for name in methods(cases)
        if is_sleeper(f"Test{kind}", name)
    ]
    assert {name for _, _, name in names} >= set(SLEEPING) - {
        "test_a_blocked_loop_keeps_its_locks"
    }
    for kind, cases, name in names:
        one, other = (
            _loops(suite, cases, kind, name) for suite in (Postgresql, Sqlite)
        )
        assert one | other == {"asyncio", "trio"}


def _loops(
    suite: type[ConformanceSuite], cases: type[Cases], kind: str, name: str
) -> set[str]:
    native = issubclass(cases, NativeCancellationCases)  # which names its loops itself
    loops = RUN_ON[suite] - ({"trio"} if native else set())
    if kind == CROWD_CASES:
        return {loop for loop in loops if has_crowd(suite.__name__, loop)}
    if suite in SHARES and not is_in_share(kind, name, SHARES[suite]):
        return set()
    turns = TURNS.get(suite)
    if is_sleeper(kind, name):
        turns = SLEEPERS_TURNS.get(suite) or turns
    return loops if turns is None else loops & turn_of(kind, name, turns)


def _collected() -> Iterator[tuple[str, str, str, str]]:
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist")
    listed = subprocess.run(
        [*command, "-p", "no:cacheprovider", "tests/conformance"],
        cwd=ROOT,
        env={**os.environ, "LONG": "1"},  # with the suites of `nox -s long`
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listed.splitlines():
        _, *inside = line.split("::")
        if len(inside) == 3:
            name, _, parameters = inside[2].rstrip("]").partition("[")
            (loop,) = LOOP_NAMES & set(parameters.split("-"))
            yield inside[0], inside[1], name, loop
