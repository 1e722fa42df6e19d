"""``min_replicas`` and mutex sets: as with locks, no grant with fewer is returned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, connect
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, QUEUE, score, traces
from tests.servers.pair import QUICK, Pair, too_few
from tests.servers.process import until
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("replicas are nothing new to it"),
]


@asynccontextmanager
async def proxies(url: str, needed: int = 1) -> AsyncIterator[MutexSet]:
    """A set of two that so many replicas must know."""
    async with connect(url, min_replicas=needed) as locks:
        pool = locks.mutex_set(KEY)
        for name in ("a", "b"):
            await pool.create(name)
        yield pool


async def queued(pair: Pair, count: int) -> None:
    await eventually(lambda: pair.primary.ask("ZCARD", QUEUE) == count, "they wait")


async def test_grants_are_at_the_replica_when_they_are_returned(pair: Pair) -> None:
    async with proxies(pair.url) as pool:
        for name in ("a", "b", None) * 10:
            async with pool.acquire(name) as held:
                at_replica = score(pair.replica, held.name)
                assert at_replica == score(pair.primary, held.name) != 0


@pytest.mark.only_on("trio", "test_replica_acks.py has asyncio")
async def test_too_few_replicas(pair: Pair) -> None:
    """Every way in is refused, what was granted is free again; what is held stays."""
    async with proxies(pair.url) as pool:
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
    async with proxies(pair.url, 0) as holder, proxies(pair.url) as pool:
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
            proxies(pair.url, 0) as holder,
            proxies(f"{proxy.url}?{QUICK}") as pool,
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
