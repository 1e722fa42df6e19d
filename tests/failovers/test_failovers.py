"""The last grant before a leader dies: what no other server has is forgotten."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote import (
    Held,
    LockLost,
    Locks,
    LockTimeout,
    connect,
)
from aiorwlock_remote.testing.history import Attempt, History, now, read_history
from tests.failovers.__main__ import started
from tests.failovers.client import KIND
from tests.failovers.judge import Cost, judge
from tests.failovers.topologies import Topology
from tests.faults.worker import AWAY, deadline

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("servers that are gone are nothing new to it"),
    pytest.mark.only_on("asyncio", "what the servers do is the same on both"),
]
NOT_GRANTED = (*AWAY, LockTimeout)


async def acquire(locks: Locks, attempt: Attempt) -> Held:
    """Acquire the name, however often the store is away."""
    while True:
        try:
            held = await locks.mutex(KIND, 0, lease=60).acquire(5)
        except NOT_GRANTED:
            continue
        attempt.granted(fence=held.fence, until=deadline(held))
        return held


async def last_grant(topology: Topology, file: Path, *, answers: bool) -> Cost:
    """Judge a grant that is asked for while no change reaches the other servers.

    Args:
        topology: the servers.
        file: for the history.
        answers: whether the leader answers then.
    """
    begun = now()
    with History(file) as history:
        async with connect(topology.url) as one, connect(topology.url) as two:
            await anyio.to_thread.run_sync(topology.hold_back)
            granted = anyio.Event()
            holds = list[Held]()
            first = history.ask(f"{KIND}/0", "W")

            async def hold() -> None:
                holds.append(await acquire(one, first))
                granted.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold)
                if answers:
                    await granted.wait()
                await anyio.to_thread.run_sync(topology.killed)
            second = history.ask(f"{KIND}/0", "W")
            with anyio.move_on_after(5):
                holds.append(await acquire(two, second))
            if reason := holds[0].lost:
                first.lost(reason)
            for held in holds:
                with suppress(LockLost):
                    await held.release()
    return judge(read_history([file]), begun, now())


@pytest.mark.parametrize("name", ["redis-sentinel", "postgresql", "mariadb"])
async def test_what_no_replica_has_is_forgotten(name: str, tmp_path: Path) -> None:
    with started(name) as topology:
        cost = await last_grant(topology, tmp_path / "history", answers=True)
    assert cost.forgotten == 1


@pytest.mark.parametrize(
    "name",
    [
        "redis-sentinel-min-replicas",
        "postgresql-synchronous",
        "mariadb-semi-synchronous",
        "etcd",
    ],
)
async def test_nothing_is_granted_before_others_have_it(
    name: str, tmp_path: Path
) -> None:
    with started(name) as topology:
        cost = await last_grant(topology, tmp_path / "history", answers=False)
    assert (cost.forgotten, cost.grants) == (0, 1)
