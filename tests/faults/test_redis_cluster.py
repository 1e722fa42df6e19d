"""A cluster whose nodes die and slots move while locks are held and waited for."""

from __future__ import annotations

import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote import LockLost, connect
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from aiorwlock_remote.testing.checker import check_history
from tests.backends.redis.connections import eventually
from tests.faults.redis_waits import KEPT, UNAWARE, renewed, waits
from tests.faults.register import Register
from tests.faults.shared_store import FourWorkers
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.loops import one_each
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartCluster
from tests.servers.redis import RedisServer
from tests.servers.sentinel import cut_off

pytestmark = pytest.mark.no_uvloop("a server that is gone is nothing new to it")

QUICK = "command_timeout=0.5"
SHARED = slot_of(b"mutex_locks/shared,1")


@pytest.fixture
def cluster(start_cluster: StartCluster) -> Cluster:
    return start_cluster(node_timeout=1.0)


def strike(node: RedisServer, how: str) -> None:
    if how == "kill":
        node.kill()
    else:
        node.pause()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_node_is_replaced_while_four_processes_lock(
    cluster: Cluster, tmp_path: Path, go_judge: GoJudge, how: str
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    old = cluster.owner(SHARED)
    with WorkerPool(f"{cluster.url}?{QUICK}", tmp_path) as pool:
        workers = FourWorkers(pool, lease=1.0)
        workers.start()
        workers.goes_on("begun")
        strike(old, how)
        cluster.await_another(SHARED, old)
        workers.goes_on("replaced")
        if how == "stop":
            old.resume()  # it believes to have the slot until it is informed
            workers.goes_on("informed")
        workers.takes_turns(100)
        events = workers.end()
    print(workers.gaps)
    # Replication is asynchronous: two may hold at once, and the fence tells them apart.
    assert {violation.kind for violation in check_history(events).violations} <= {
        "exclusion"
    }
    verdict = go_judge(sorted(tmp_path.glob("*.jsonl")), 1000)
    assert not set(verdict.violations) & {"fence", "isolation", "garbage"}


def test_the_slot_moves_while_four_processes_lock(
    cluster: Cluster, tmp_path: Path, go_judge: GoJudge
) -> None:
    """From node to node, with all its keys, also slowly; nobody is let in twice."""
    with WorkerPool(cluster.url, tmp_path) as pool:
        workers = FourWorkers(pool, lease=1.0)
        workers.start()
        for node in islice(cycle(cluster.servers[:3]), 12):
            time.sleep(0.2)
            if node is not cluster.owner(SHARED):
                cluster.begin_move(SHARED, node)
                while cluster.move_keys(SHARED, node, count=1):
                    time.sleep(0.02)
                cluster.end_move(SHARED, node)
        workers.goes_on("moved")
        workers.takes_turns(100)
        events = workers.end()
    assert not check_history(events).violations
    assert not go_judge(sorted(tmp_path.glob("*.jsonl")), 1000).violations


@pytest.mark.anyio
@pytest.mark.parametrize("how", one_each("stop", "kill"))
async def test_holders_and_waiters_go_over(cluster: Cluster, how: str) -> None:
    """What the replica has is held on, renewed there, waited for there."""
    slot = slot_of(b"mutex_locks/kept,1")
    old, url = cluster.owner(slot), f"{cluster.url}?{QUICK}"
    async with connect(url) as locks, connect(url) as others:
        held = await locks.mutex("kept", 1).acquire(lease=KEPT)
        fences: list[int] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                async with others.mutex("kept", 1).acquire(timeout=60) as mine:
                    fences.append(mine.fence)

            tasks.start_soon(wait)
            await waits(old, locks.mutex("kept", 1))
            assert old.ask_all(("PUBLISH", "a", "b"), ("WAIT", 1, 5000))[1] == 1
            strike(old, how)
            new = await anyio.to_thread.run_sync(cluster.await_another, slot, old)
            await renewed(new, held)
            link: Any = locks._session.client.store._endpoint  # type: ignore[attr-defined]
            there = ("127.0.0.1", new.port)
            await eventually(lambda: link.slots.owners[slot] == there, "the loop knows")
            assert fences == []
            assert await held.release()
        assert fences[0] > held.fence


@pytest.mark.anyio
@pytest.mark.only_on("asyncio", "test_redis_failover.py has trio")
async def test_promotion_after_lost_writes(cluster: Cluster, tmp_path: Path) -> None:
    """A grant that the new node does not know is lost, and has the older fence.

    Until its holder learns of it there are two: without the fence both would write.
    """
    slot = slot_of(b"mutex_locks/lost,1")
    old = cluster.owner(slot)
    async with connect(cluster.url) as locks, connect(cluster.url) as others:
        cut_off(old)
        held = await locks.mutex("lost", 1).acquire(lease=UNAWARE)
        old.kill()
        await anyio.to_thread.run_sync(cluster.await_another, slot, old)
        fenced, bare = Register(tmp_path / "fenced"), Register(tmp_path / "bare")
        async with others.mutex("lost", 1).acquire(timeout=20) as second:
            held.check()  # it does not know: that is the damage
            assert second.fence > held.fence
            assert fenced.access(second.fence) == 1
            assert fenced.access(held.fence) is None
            assert [bare.access(0), bare.access(0)] == [1, 2]  # no fence: both
        await eventually(lambda: not held.valid, "the loss is known", 60)
        with pytest.raises(LockLost) as caught:
            held.check()
        assert caught.value.reason in {"expired", "forced", "stolen"}
        fenced.close()
        bare.close()
