"""A primary that is replaced by Sentinel while locks are held and waited for."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote import BackendUnavailable, LockLost, connect
from aiorwlock_remote.testing.checker import check_history
from aiorwlock_remote.testing.history import Access, Event
from tests.backends.redis.connections import eventually
from tests.faults.failovers import BAR, Connect, by_client, by_url, planned_failover
from tests.faults.failovers import KEPT as REPLICATED
from tests.faults.redis_waits import KEPT, UNAWARE, renewed, take_turn, waits
from tests.faults.register import Register
from tests.faults.shared_store import FourWorkers
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.loops import one_each
from tests.servers.fix_redis import StartSentinels
from tests.servers.pair import Pair
from tests.servers.process import until
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup, cut_off

pytestmark = pytest.mark.no_uvloop("a server that is gone is nothing new to it")

QUICK = "command_timeout=0.5"
LEASE = 1.0


@pytest.fixture
def group(start_sentinels: StartSentinels) -> SentinelGroup:
    return start_sentinels(down_after=2)


def strike(primary: RedisServer, how: str) -> None:
    if how == "stop":
        primary.pause()
    else:
        primary.kill()


@pytest.mark.parametrize("how", ["kill", "stop", "lost writes"])
def test_while_four_processes_lock(
    group: SentinelGroup, tmp_path: Path, go_judge: GoJudge, how: str
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    old = group.primary
    with WorkerPool(f"{group.url}?{QUICK}", tmp_path) as pool:
        workers = FourWorkers(pool, lease=LEASE)
        workers.start()
        workers.goes_on("begun")
        if how == "lost writes":
            cut_off(old)
            # What the replicas know ends: else readers could join a phase whose end,
            # and a writer after it, they did not know of.
            time.sleep(1.5 * LEASE)
        strike(old, how)
        group.await_another(old)
        workers.goes_on("replaced")
        if how == "stop":
            old.resume()  # it believes to be the primary until it is informed
            until(lambda: old.role == "slave", "it is a replica now", 40)
            workers.goes_on("informed")
        workers.takes_turns(100)
        events = workers.end()
    print(workers.gaps)
    # Replication is asynchronous: two may hold at once, and the fence tells them apart.
    assert {v.kind for v in check_history(events).violations} <= {"exclusion"}
    go_verdict = go_judge(sorted(tmp_path.glob("*.jsonl")), LEASE * 1000)
    assert not set(go_verdict.violations) & {"fence", "isolation", "garbage"}


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "control"])
def test_two_hold_and_the_fence_tells_them_apart(
    group: SentinelGroup, tmp_path: Path, go_judge: GoJudge, *, fenced: bool
) -> None:
    """Who holds by a lost write works on; without fences he does so between others."""
    old = group.primary
    with WorkerPool(f"{group.url}?{QUICK}", tmp_path) as pool:
        workers = FourWorkers(pool, lease=60, writes=1.0)
        pool.halt()
        workers.start(fenced=fenced)
        cut_off(old)
        pool.go_on()
        workers.takes_turns(50)
        pool.halt()
        until(lambda: len(inside(pool.history())) == 1, "one stays inside")
        (first,) = inside(pool.history())
        old.kill()
        group.await_another(old)
        until(lambda: len(inside(pool.history())) == 2, "another one enters", 60)
        pool.go_on()
        until(lambda: first not in inside(pool.history()), "the first goes on")
        workers.takes_turns(50)
        events = workers.end()
    verdict = check_history(events)
    damage = set[str]() if fenced else {"isolation"}
    assert {v.kind for v in verdict.violations} == {"exclusion"} | damage
    assert verdict.refused == (1 if fenced else 0)
    go_verdict = go_judge(sorted(tmp_path.glob("*.jsonl")), 60_000)
    assert set(go_verdict.violations) & {"fence", "isolation", "garbage"} == damage


def inside(events: list[Event]) -> set[str]:
    """Who has made one of his two accesses."""
    steps = Counter(e.holder for e in events if isinstance(e, Access))
    return {holder for holder, count in steps.items() if count == 1}


@pytest.mark.anyio
@pytest.mark.parametrize("how", one_each("kill", "stop"))
async def test_holders_and_waiters_go_over(group: SentinelGroup, how: str) -> None:
    """What the replicas have is held on, renewed there, waited for there."""
    old, url = group.primary, f"{group.url}?{QUICK}"
    async with connect(url) as locks, connect(url) as others:
        held = await locks.mutex("kept", 1).acquire(lease=KEPT)
        read = await locks.rwlock("kept", 2).reader.acquire(lease=KEPT)
        fences: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_turn, others.mutex("kept", 1), fences)
            await waits(old, locks.mutex("kept", 1))
            until(lambda: group.in_step(old, 2), "the replicas have it")
            strike(old, how)
            new = await anyio.to_thread.run_sync(group.await_another, old)
            await renewed(new, held)
            read.check()
            assert fences == []
            # A Sentinel has announced it: nobody has to find the old one silent.
            assert await locks.mutex("kept", 1).locked()
            assert await held.release()
        assert fences[0] > held.fence
        assert await read.release()


@pytest.mark.anyio
@pytest.mark.only_on("trio", "test_redis_cluster.py has asyncio")
async def test_promotion_after_lost_writes(
    group: SentinelGroup, tmp_path: Path
) -> None:
    """A grant that the new primary does not know is lost, and has the older fence.

    Its holder learns of it long before a renewal is due, after a third of the lease.
    """
    old = group.primary
    async with connect(group.url) as locks, connect(group.url) as others:
        cut_off(old)
        held = await locks.mutex("lost", 1).acquire(lease=UNAWARE)
        read = await locks.rwlock("lost", 2).reader.acquire(lease=UNAWARE)
        old.kill()
        await anyio.to_thread.run_sync(group.await_another, old)
        register = Register(tmp_path / "register")
        async with others.mutex("lost", 1).acquire(timeout=20) as second:
            assert second.fence > held.fence
            assert register.access(second.fence) == 1
            assert register.access(held.fence) is None
        async with others.rwlock("lost", 2).writer.acquire(timeout=20) as writer:
            assert writer.fence > read.fence
        for gone in (held, read):
            await eventually(lambda: not gone.valid, "the loss is known", UNAWARE / 6)  # noqa: B023
            with pytest.raises(LockLost) as caught:
                gone.check()
            assert caught.value.reason in {"expired", "forced", "stolen"}
        register.close()


@pytest.mark.anyio
@pytest.mark.only_on("trio", "the server decides")
async def test_a_release_that_the_new_primary_does_not_know(
    pair: Pair, tmp_path: Path
) -> None:
    """Readers join the grant that was released, and have its fence: both are refused.

    The next writer has a higher fence again.
    """
    register = Register(tmp_path / "register")
    async with connect(pair.url) as old:
        read = await old.rwlock("stock", 7).reader.acquire(lease=LEASE)
        until(pair.level, "the replica has the grant")
        pair.replica.ask("REPLICAOF", "NO", "ONE")
        assert await read.release()
        async with old.rwlock("stock", 7).writer.acquire(timeout=20) as lost:
            assert register.access(lost.fence) == 1
    async with connect(pair.replica.url) as new:
        async with new.rwlock("stock", 7).reader.acquire(timeout=20) as joined:
            assert joined.fence == read.fence < lost.fence
            assert register.access(joined.fence) is None
        async with new.rwlock("stock", 7).writer.acquire(timeout=20) as writer:
            assert register.access(writer.fence) == 2
    register.close()


@pytest.mark.anyio
async def test_with_enough_replicas_nothing_is_lost(group: SentinelGroup) -> None:
    """``min_replicas``: nobody got a grant that the replicas lack."""
    old = group.primary
    url = f"{group.url}?command_timeout=2"
    async with connect(url, min_replicas=2) as locks:
        held = await locks.mutex("kept", 1).acquire(lease=KEPT)
        cut_off(old)
        with anyio.fail_after(10):
            assert await _refused(url, 2)
        old.kill()
        new = await anyio.to_thread.run_sync(group.await_another, old)
        held.check()
        assert new.ask("EXISTS", "mutex_locks/kept,1") == 1
        async with connect(url, min_replicas=1) as others:
            assert await others.mutex("kept", 1).try_acquire() is None
            assert await held.release()
            async with others.mutex("kept", 1).acquire(timeout=20) as mine:
                assert mine.fence > held.fence


async def _refused(url: str, replicas: int) -> bool:
    async with connect(url, min_replicas=replicas) as locks:
        try:
            await locks.mutex("more", 1).acquire()
        except BackendUnavailable as exc:
            return exc.replicas == 0
    return False


@pytest.mark.anyio
@pytest.mark.parametrize("how", one_each(by_client, by_url))
async def test_planned(group: SentinelGroup, how: Connect) -> None:
    """The old primary stays up, and holders leave it; ``failovers.py`` at length."""
    report = await planned_failover(group, 2, how, settle=3)
    assert report.grants("replicated") >= REPLICATED
    assert report.overlaps("replicated") == []
    assert max(report.overlaps("fresh"), default=0.0) <= BAR
