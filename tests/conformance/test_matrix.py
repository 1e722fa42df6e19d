"""Every backend runs every case that applies, on every loop; nothing is left out."""

from __future__ import annotations

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
    Site,
)
from aiorwlock_remote.testing.conformance.cases.native import (
    NativeCancellationCases,
)
from tests.conformance.stores import MemoryHarness
from tests.conformance.test_cassandra import TestCassandra as Cassandra
from tests.conformance.test_cluster import TestCluster as Cluster
from tests.conformance.test_memory import TestMemory as Memory
from tests.conformance.test_redis import TestRedis as Redis
from tests.conformance.test_redis_client import TestLoopBoundClient as LoopBoundClient
from tests.conformance.test_redis_client import TestRedisClient as RedisClient
from tests.conformance.test_redis_pairs import TestRedisPairs as RedisPairs
from tests.conformance.test_redis_rights import TestRedisRights as RedisRights
from tests.conformance.test_redis_tls import TestRedisTls as RedisTls
from tests.conformance.test_sentinel import TestSentinel as Sentinel
from tests.conformance.test_sqlite import TestSqlite as Sqlite
from tests.conftest import LOOPS

ROOT = Path(__file__).parents[2]
EVERYWHERE = {
    "Admin",
    "BadInput",
    "BlockedLoop",
    "Cancellation",
    "Close",
    "Declared",
    "Fairness",
    "Fence",
    "Lease",
    "Loss",
    "Moves",
    "Multi",
    "Mutex",
    "NativeCancellation",
    "OneNameOneLock",
    "Passing",
    "PublishedCalls",
    "RWLock",
    "Seat",
    "Waiting",
    "Waking",
}
MATRIX: dict[type[ConformanceSuite], set[str]] = {
    Memory: EVERYWHERE,
    Sqlite: EVERYWHERE | {"Process"},
    Cassandra: EVERYWHERE - {"Waking"} | {"Process"},  # it notifies nobody
    Cluster: EVERYWHERE | {"Process"},
    Redis: EVERYWHERE | {"Process"},
    RedisClient: EVERYWHERE | {"Process"},
    LoopBoundClient: EVERYWHERE - {"BlockedLoop"} | {"Process"},
    RedisRights: EVERYWHERE | {"Process"},
    RedisTls: EVERYWHERE | {"Process"},
    RedisPairs: EVERYWHERE - {"Seat"},
    Sentinel: EVERYWHERE | {"Process"},
}
LOOP_NAMES = {str(loop.id) for loop in LOOPS}
NOT_ON: dict[type[ConformanceSuite], str] = {
    Cassandra: "uvloop",  # whose driver has a thread of its own
    RedisClient: "trio",  # redis-py knows nothing of it
    LoopBoundClient: "trio",
    **dict.fromkeys((Cluster, RedisPairs, RedisRights, RedisTls, Sentinel), "uvloop"),
}


def classes(suite: type[ConformanceSuite]) -> dict[str, type[Cases]]:
    """The case classes of a backend, by name."""
    inner = {name: value for name, value in vars(suite).items() if name[:4] == "Test"}
    return {name.removeprefix("Test"): value for name, value in inner.items()}


def methods(cases: type[Cases]) -> list[str]:
    """The cases of a class."""
    return [name for name in dir(cases) if name.startswith("test_")]


@pytest.mark.parametrize("suite", MATRIX, ids=lambda suite: suite.__name__)
def test_what_a_backend_runs(suite: type[ConformanceSuite]) -> None:
    assert set(classes(suite)) == MATRIX[suite]


def test_a_backend_that_can_do_little_runs_less() -> None:
    class Modest(Harness):
        capabilities = Capability.NONE

        def fresh(self, folder: Path) -> Site:
            return Site(f"modest:///{folder}")

    class Suite(ConformanceSuite):
        harness = Modest()

    left_out = {"BlockedLoop", "Seat", "Waking"}
    assert set(classes(Suite)) == EVERYWHERE - left_out


def test_a_published_layout_is_proved_by_a_foreigner() -> None:
    class Boastful(MemoryHarness):
        capabilities = Capability.PUBLISHED_LAYOUT
        has_foreigner = False

    with pytest.raises(AssertionError, match="needs a foreigner"):
        type("Suite", (ConformanceSuite,), {"harness": Boastful()})


def test_every_case_class_is_run_by_somebody() -> None:
    named = {cases.__name__.removesuffix("Cases") for cases in ALL_CASES}
    assert set().union(*MATRIX.values()) == named


def test_the_suite_is_not_small() -> None:
    assert sum(len(methods(cases)) for cases in ALL_CASES) >= 60


def test_every_case_says_what_is_promised() -> None:
    silent = [
        f"{cases.__name__}.{name}"
        for cases in ALL_CASES
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
        for loop in _loops(suite, cases)
    }
    assert set(collected) == expected


def _loops(suite: type[ConformanceSuite], cases: type[Cases]) -> set[str]:
    native = issubclass(cases, NativeCancellationCases)  # which names its loops itself
    return LOOP_NAMES - {"trio" if native else "", NOT_ON.get(suite, "")}


def _collected() -> Iterator[tuple[str, str, str, str]]:
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist")
    listed = subprocess.run(
        [*command, "-p", "no:cacheprovider", "tests/conformance"],
        cwd=ROOT,
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
