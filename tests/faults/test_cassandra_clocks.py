"""Coordinators whose clocks are five seconds apart, each asked for the same locks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise, permutations

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    LockLost,
    Locks,
    connect,
)
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.servers.cassandra_ring import IPS, CassandraRing, Visit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver has a thread of its own"),
]

CLOCKS = (-5, 0, 5)
LEASE = 1.0
KEPT = 2.0
"""Of grants that are renewed: a busy machine is late at times."""
KEYSPACE = "clocks"
AWAY = (BackendUnavailable, AcquireUncertain, LockLost)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a ring whose nodes do not take each other's messages for late."""
    folder = tmp_path_factory.mktemp("clocks")
    ring = CassandraRing(folder, config={"internode_timeout": "false"}, clocks=CLOCKS)
    try:
        with Visit(IPS[0], ring.port) as visit:
            (server_time,) = visit.rows(
                "SELECT toTimestamp(now()) AS at FROM system.local"
            )
            assert -8 < server_time.at.timestamp() - SystemClock().wall() < -2
            visit.rows(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 3}"
            )
            anyio.run(CassandraBackend(visit.session, KEYSPACE).create_schema)
        yield ring.port
    finally:
        ring.close()


@pytest.fixture
async def via(port: int) -> AsyncIterator[list[Locks]]:
    """Locks that ask one node each."""
    async with AsyncExitStack() as stack:
        locks = []
        for ip in IPS:
            visit = stack.enter_context(Visit(ip, port))
            backend = CassandraBackend(visit.session, KEYSPACE, clock_skew=1)
            locks.append(await stack.enter_async_context(connect(backend)))
        yield locks


async def test_fences_rise_whoever_decides(via: list[Locks]) -> None:
    """From nothing, so each fence is another coordinator's ballot."""
    chance, fences = random.Random(1), list[int]()
    for _ in range(30):
        async with chance.choice(via).mutex("fenced", 1) as held:
            fences.append(held.fence)
    assert all(before < after for before, after in pairwise(fences))


async def test_a_lease_ends_when_it_has_run_out(via: list[Locks]) -> None:
    """Granted by one, waited for at another: not earlier, nor five seconds later."""
    clock, took = SystemClock(), dict[tuple[int, int], float]()

    async def wait(one: int, other: int) -> None:
        name = ("left", 10 * one + other)
        asked = clock.now()
        (await via[one].mutex(*name, lease=LEASE).acquire()).detach()
        async with via[other].mutex(*name):
            took[one, other] = clock.now() - asked

    async with anyio.create_task_group() as group:
        for one, other in permutations(range(3), 2):
            group.start_soon(wait, one, other)
    assert len(took) == 6
    assert min(took.values()) >= LEASE
    assert max(took.values()) < LEASE + 4, took


async def test_nobody_is_inside_twice(via: list[Locks]) -> None:
    """Writers and readers through all three, with leases that are renewed meanwhile."""
    inside, turns = list[str](), list[int]()

    async def turn(lock: ReaderLock | WriterLock, mode: str) -> None:
        async with lock as held:
            inside.append(mode)
            try:
                assert "writer" not in inside or len(inside) == 1
                turns.append(held.fence)
                first = len(turns) == 1
                await anyio.sleep(1.2 * KEPT if first else 0.01)
            finally:
                inside.remove(mode)

    async def go(locks: Locks, number: int) -> None:
        chance, left = random.Random(number), 4
        while left:
            both = locks.rwlock("shared", 1, lease=KEPT)
            mode = chance.choice(("reader", "writer"))
            try:
                await turn(both.reader if mode == "reader" else both.writer, mode)
            except AWAY:  # reported, and no harm done: the machine is busy
                continue
            left -= 1

    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(go, via[number % 3], number)
    assert len(turns) >= 36
    assert turns == sorted(turns)
