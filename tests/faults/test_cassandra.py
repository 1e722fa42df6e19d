"""A ring whose nodes die, stop and restart while locks are held and waited for."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, Mutex, connect
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.testing.conformance.actors import wait_until as seen
from aiorwlock_remote.testing.history import now
from tests.faults.shared_store import PATIENCE, FourWorkers, acquit
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.cassandra_ring import IPS, CassandraRing, Visit

pytestmark = pytest.mark.slow

STOPPED = 5 * 10**9
"""Nanoseconds: longer than a request may take, and than a lease."""
KEYSPACE = "faults"
AWAY = (BackendUnavailable, AcquireUncertain)


@pytest.fixture
def ring(cassandra_ring: CassandraRing) -> CassandraRing:
    """With a table of locks."""
    with Visit(IPS[0], cassandra_ring.port) as visit:
        visit.rows(
            f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        anyio.run(CassandraBackend(visit.session, KEYSPACE).create_schema)
    cassandra_ring.settle()
    return cassandra_ring


def test_four_processes_lock_while_nodes_die(
    ring: CassandraRing, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    killed, stopped, restarted = ring.nodes
    with WorkerPool(f"{ring.url}/{KEYSPACE}?clock_skew=1", tmp_path) as pool:
        workers = FourWorkers(pool, body=0.1)
        workers.start()
        workers.goes_on("begun")
        killed.kill()
        workers.goes_on("two are enough")
        killed.start()
        ring.settle()
        workers.goes_on("killed and back")
        stopped.pause()
        at = now()
        workers.goes_on("two are enough still", at)
        workers.goes_on("for long", at + STOPPED)
        stopped.resume()
        workers.goes_on("goes on")
        restarted.restart()
        ring.settle()
        workers.goes_on("restarted")
        workers.takes_turns(20)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    print(workers.gaps, verdict.grants)


@pytest.mark.asyncio
async def test_two_of_three_are_away(ring: CassandraRing) -> None:
    """Each request fails within the time-out; nothing is lost, and it goes on."""
    url = f"{ring.url}/{KEYSPACE}?clock_skew=1"
    async with connect(url, connect_timeout=20) as locks:
        held = await locks.mutex("kept", 1, lease=120).acquire()
        for node in ring.nodes[1:]:
            node.pause()
        try:
            with anyio.fail_after(PATIENCE):
                with pytest.raises(AWAY):
                    async with locks.mutex("order", 1):
                        pass
                with pytest.raises(AWAY):
                    await locks.mutex("order", 2).acquire(timeout=3)
            held.check()
        finally:
            for node in ring.nodes[1:]:
                node.resume()
        await seen(lambda: recovered(locks.mutex("order", 1)), PATIENCE)
        assert (await locks.mutex("kept", 1).info()).holders[0].holder == held.holder
        assert await held.release()
        async with locks.mutex("kept", 1).acquire(timeout=5) as again:
            assert again.fence > held.fence


async def recovered(lock: Mutex) -> bool:
    """Whether it can be taken and given back."""
    try:
        async with lock.acquire(timeout=10):
            return True
    except AWAY:
        return False
