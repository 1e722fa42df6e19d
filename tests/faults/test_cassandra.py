"""A ring whose nodes die, stop and restart while locks are held and waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, Mutex, connect
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.testing.conformance.party import until
from aiorwlock_remote.testing.events import Event, Granted
from aiorwlock_remote.testing.history import now
from aiorwlock_remote.testing.judge import judge
from tests.faults.fleet import Fleet
from tests.judge.fix_judge import GoJudge
from tests.servers.cassandra_ring import IPS, CassandraRing, Visit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HEALS = 10.0
"""Seconds after which somebody has entered again."""
KEYSPACE = "faults"
AWAY = (BackendUnavailable, AcquireUncertain)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraRing]:
    """What a node has promised, it remembers when it is killed."""
    folder = tmp_path_factory.mktemp("ring")
    ring = CassandraRing(folder, config={"commitlog_sync": "batch"})
    try:
        with Visit(IPS[0], ring.port) as visit:
            visit.rows(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 3}"
            )
            backend = CassandraBackend(visit.session, KEYSPACE)
            anyio.run(backend.create_schema)
        ring.settle()
        yield ring
    finally:
        ring.close()


def crowd(fleet: Fleet) -> None:
    """Four processes of eight tasks that go on whatever becomes of the nodes."""
    plan = {"tasks": 8, "writes": 0.5, "lease": 3.0, "body": 0.002, "hardy": True}
    for loop in ("asyncio", "trio", "asyncio", "trio"):
        fleet.start(loop=loop, **plan)


def entered(events: list[Event], after: int) -> float:
    """Seconds from a moment until somebody was let in."""
    times = [e.at for e in events if isinstance(e, Granted) and e.at > after]
    assert times, "nobody entered any more"
    return (min(times) - after) / 1e9


def test_four_processes_lock_while_nodes_die(
    ring: CassandraRing, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    healed: dict[str, int] = {}
    url = f"{ring.url}/{KEYSPACE}?clock_skew=1"
    with Fleet(url, tmp_path) as fleet:
        crowd(fleet)
        time.sleep(2)
        ring.nodes[0].kill()
        healed["two are enough"] = now()
        time.sleep(6)
        ring.nodes[0].start()
        ring.settle()
        healed["killed and back"] = now()
        time.sleep(2)
        ring.nodes[1].pause()
        healed["two are enough still"] = now()
        time.sleep(6)
        ring.nodes[1].resume()
        healed["goes on"] = now()
        time.sleep(3)
        ring.nodes[2].restart()
        ring.settle()
        healed["restarted"] = now()
        time.sleep(1.5 * HEALS)
        for name in fleet.names:
            fleet.kill(name)
        events = fleet.history()
    gaps = {what: round(entered(events, at), 2) for what, at in healed.items()}
    verdict = judge(events)
    told = go_judge(sorted(tmp_path.glob("*.jsonl")), 3000)
    print(gaps, verdict.grants, told.violations)
    assert max(gaps.values()) <= HEALS
    assert not verdict.violations
    assert not set(told.violations) & {"fence", "isolation", "garbage", "exclusion"}
    assert verdict.grants > 100
    last = healed["restarted"]
    processes = {e.process for e in events if isinstance(e, Granted) and e.at > last}
    assert processes == {"w0", "w1", "w2", "w3"}


@pytest.mark.asyncio
async def test_two_of_three_are_away(ring: CassandraRing) -> None:
    """Who asks is told within the time-out; nothing is lost, and it goes on."""
    url = f"{ring.url}/{KEYSPACE}?clock_skew=1"
    async with connect(url, connect_timeout=20) as locks:
        held = await locks.mutex("kept", 1, lease=120).acquire()
        for node in ring.nodes[1:]:
            node.pause()
        try:
            began = time.monotonic()
            with pytest.raises(AWAY):
                async with locks.mutex("order", 1):
                    pass
            with pytest.raises(AWAY):
                await locks.mutex("order", 2).acquire(timeout=3)
            print(round(time.monotonic() - began, 1))
            assert time.monotonic() - began < 40
            held.check()
        finally:
            for node in ring.nodes[1:]:
                node.resume()
        began = time.monotonic()
        await until(lambda: recovered(locks.mutex("order", 1)), 60)
        assert time.monotonic() - began <= HEALS
        assert (await locks.mutex("kept", 1).info()).holders[0].holder == held.holder
        assert await held.release()
        async with locks.mutex("kept", 1).acquire(timeout=5) as again:
            assert again.fence > held.fence


async def recovered(lock: Mutex) -> bool:
    """Whether it can be taken and given back."""
    try:
        async with lock.acquire(timeout=HEALS):
            return True
    except AWAY:
        return False
