"""Mutex sets over a failover: what the replica knows is held, the rest is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote import BackendUnavailable, Held, LockLost, connect
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.faults.redis_waits import KEPT, UNAWARE
from tests.loops import one_each
from tests.recipes.fix_sets import KEY, QUEUE, Place, proxies, score, traces
from tests.servers.fix_redis import StartSentinels
from tests.servers.pair import QUICK, Pair, too_few
from tests.servers.process import until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup, cut_off

pytestmark = [
    pytest.mark.anyio,
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# ------------------------------------------------------------------------------
# ``min_replicas`` and mutex sets: as with locks, no grant with fewer is returned.


@asynccontextmanager
async def replicated_proxies(url: str, needed: int = 1) -> AsyncIterator[MutexSet]:
    """A set of two that so many replicas must know."""
    async with connect(url, min_replicas=needed) as locks:
        pool = locks.mutex_set(KEY)
        for name in ("a", "b"):
            await pool.create(name)
        yield pool


async def queued(pair: Pair, count: int) -> None:
    await eventually(lambda: pair.primary.ask("ZCARD", QUEUE) == count, "they wait")


async def test_grants_are_at_the_replica_when_they_are_returned(pair: Pair) -> None:
    async with replicated_proxies(pair.url) as pool:
        for name in ("a", "b", None) * 10:
            async with pool.acquire(name) as held:
                at_replica = score(pair.replica, held.name)
                assert at_replica == score(pair.primary, held.name) != 0


@pytest.mark.only_on("trio", "test_replica_acks.py has asyncio")
async def test_too_few_replicas(pair: Pair) -> None:
    """Every way in is refused, what was granted is free again; what is held stays."""
    async with replicated_proxies(pair.url) as pool:
        kept, left = await pool.acquire("a"), await pool.acquire("b")
        await pool.create("c")
        pair.replica.pause()
        for name in ("c", None):
            await too_few(pool.acquire(name))
            await too_few(pool.acquire(name, timeout=5))
            await too_few(pool.acquire(name, timeout=0))
            await too_few(pool.try_acquire(name))
            assert score(pair.primary, "c") == 0
        with anyio.fail_after(1.5):  # less than replicas are given
            await pool.update(kept)
            assert await pool.release(left)
        pair.replica.resume()
        until(lambda: pair.acknowledged() == 1, "the replica is in step")
        async with pool.acquire("c", timeout=5):
            kept.check()
        assert await kept.release()
    assert traces(pair.primary) == []


async def test_a_waiter_is_refused_and_the_next_one_is_not(pair: Pair) -> None:
    """Those behind him keep their turn, and are luckier."""
    async with (
        replicated_proxies(pair.url, 0) as holder,
        replicated_proxies(pair.url) as pool,
    ):
        held = await holder.acquire("a")
        entered: list[int] = []

        async def first() -> None:
            await too_few(pool.acquire("a"))
            pair.replica.resume()

        async def second() -> None:
            while not entered:
                # The replica of a busy machine may need longer than it is given.
                with suppress(BackendUnavailable):
                    async with pool.acquire("a") as mine:
                        entered.append(mine.fence)

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await queued(pair, 1)
            group.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            pair.replica.pause()
            assert await held.release()
        assert entered > [held.fence]
    await eventually(lambda: traces(pair.primary) == [], "nothing stays")


@pytest.mark.parametrize("waits", [False, True])
async def test_a_connection_lost_while_the_replica_is_asked(
    pair: Pair, *, waits: bool
) -> None:
    """What was granted is free again; who had a place waits on."""
    with Proxy(pair.primary.port) as proxy:
        async with (
            replicated_proxies(pair.url, 0) as holder,
            replicated_proxies(f"{proxy.url}?{QUICK}") as pool,
        ):
            held = await holder.acquire("a")
            before = score(pair.primary, "a")
            outcomes: list[BackendUnavailable | int] = []

            async def ask() -> None:
                try:
                    async with pool.acquire("a") as mine:
                        outcomes.append(mine.fence)
                except BackendUnavailable as exc:
                    outcomes.append(exc)

            async with anyio.create_task_group() as group:
                if waits:
                    group.start_soon(ask)
                    await queued(pair, 1)
                pair.replica.pause()
                assert await held.release()
                if not waits:
                    group.start_soon(ask)
                await eventually(
                    lambda: score(pair.primary, "a") not in {0, before}, "granted"
                )
                proxy.cut()
                pair.replica.resume()
            assert isinstance(outcomes[0], int if waits else BackendUnavailable)
        await eventually(lambda: traces(pair.primary) == [], "nothing stays")
