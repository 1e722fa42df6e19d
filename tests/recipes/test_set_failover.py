"""Mutex sets over a failover: what the replica knows is held, the rest is lost."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote import Held, LockLost, connect
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.faults.redis_waits import KEPT, UNAWARE
from tests.loops import one_each
from tests.recipes.fix_sets import KEY, QUEUE, Place, proxies, score
from tests.servers.fix_redis import StartSentinels
from tests.servers.process import until
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup, cut_off

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("a server that is gone is nothing new to it"),
]


@pytest.fixture
def group(start_sentinels: StartSentinels) -> SentinelGroup:
    return start_sentinels(down_after=2)


def place(group: SentinelGroup) -> Place:
    return Place(group.primary, f"{group.url}?command_timeout=0.5")


async def replaced(group: SentinelGroup, old: RedisServer) -> RedisServer:
    return await anyio.to_thread.run_sync(group.await_another, old)


async def use(pool: MutexSet, turns: list[int], name: str | None = None) -> None:
    async with pool.acquire(name, timeout=60) as held:
        turns.append(held.fence)


async def kept(server: RedisServer, held: Held) -> None:
    """Its keeper got through."""
    before = score(server, held.name)
    assert before
    await eventually(lambda: (score(server, held.name) or 0) > before, "updated", 60)
    held.check()


@pytest.mark.parametrize("how", one_each("stop", "kill"))
async def test_holders_and_waiters_go_over(group: SentinelGroup, how: str) -> None:
    """What the replicas have is held on, updated there, waited for there."""
    old, turns = group.primary, list[int]()
    async with proxies(place(group), "a", lease=KEPT) as pool:
        held = await pool.acquire()
        async with (
            proxies(place(group), lease=KEPT) as others,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(use, others, turns)
            await eventually(lambda: old.ask("ZCARD", QUEUE) == 1, "waits")
            until(lambda: group.in_step(old, 2), "the replicas have it")
            if how == "kill":
                old.kill()
            else:
                old.pause()
            new = await replaced(group, old)
            await kept(new, held)
            assert turns == []
            # A Sentinel has announced it: nobody has to find the old one silent.
            assert await pool.create("b")
            assert await held.release()
        assert turns[0] > held.fence


@pytest.mark.only_on("asyncio", "test_redis_failover.py has trio")
async def test_promotion_after_lost_writes(group: SentinelGroup) -> None:
    """A grant that the new primary does not know is lost, and has the older fence."""
    old, turns = group.primary, list[int]()
    async with proxies(place(group), "a", lease=UNAWARE) as pool:
        until(lambda: group.in_step(old, 2), "the replicas have it")
        cut_off(old)
        held = await pool.acquire("a")
        old.kill()
        await replaced(group, old)
        async with proxies(place(group), lease=UNAWARE) as others:
            await use(others, turns)
        assert turns[0] > held.fence
        await eventually(lambda: not held.valid, "the loss is known", 60)
        with pytest.raises(LockLost) as caught:
            await pool.release(held)
        assert caught.value.reason in {"expired", "forced", "stolen"}


async def test_with_enough_replicas_nothing_is_lost(group: SentinelGroup) -> None:
    """``min_replicas``: a grant that a replica does not have was returned to nobody."""
    old, url = group.primary, f"{group.url}?command_timeout=8"
    async with connect(url, min_replicas=2) as locks:
        pool = locks.mutex_set(KEY, lease=60)
        await pool.create("a")
        held = await pool.acquire()
        cut_off(old)
        old.kill()
        new = await replaced(group, old)
        # Not less: the keeper has updated it there.
        assert (score(new, "a") or 0) >= held.fence / 1e6
        held.check()
        async with proxies(place(group)) as others:
            assert await others.try_acquire() is None
        held.check()
