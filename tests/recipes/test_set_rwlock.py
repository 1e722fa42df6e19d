"""A readers-writer lock on a set and a string: taking, sharing, waiting, names."""

from __future__ import annotations

import time

import anyio
import pytest

from aiorwlock_remote import Held, LockTimeout, RWLock, WouldDeadlock, connect
from tests.backends.redis.connections import eventually
from tests.recipes.fix_pairs import (
    EXPIRY,
    MODES,
    READ_KEY,
    STATE,
    WRITE_KEY,
    catalog,
    queued,
    side,
    traces,
)
from tests.recipes.fix_sets import requests
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_readers_share_a_writer_is_alone(fresh_redis: RedisServer) -> None:
    async with (
        catalog(fresh_redis) as one,
        catalog(fresh_redis) as two,
        catalog(fresh_redis) as three,
    ):
        async with one.reader as first, two.reader_lock as second:
            assert first.fence == second.fence, "one phase"
            assert (first.resource, first.name, first.mode) == (
                "catalog:7",
                "7",
                "read",
            )
            assert fresh_redis.ask("SCARD", READ_KEY) == 2
            assert fresh_redis.ask("ZCARD", EXPIRY) == 2
            assert await three.writer.try_acquire() is None
            with pytest.raises(LockTimeout) as caught:
                await three.writer.acquire(timeout=0.05)
            assert caught.value.holders
            with pytest.raises(WouldDeadlock):
                await one.writer.acquire()
        assert fresh_redis.ask("EXISTS", READ_KEY, EXPIRY) == 0
        async with one.writer_lock.acquire(timeout=1, reason="rebuild") as held:
            ticket = fresh_redis.ask("GET", WRITE_KEY).decode()
            assert len(ticket) == 32
            assert fresh_redis.ask("PTTL", WRITE_KEY) > 25_000
            assert held.fence > first.fence
            for mode in MODES:
                assert await side(two, mode).try_acquire() is None
            (holder,) = (await two.info()).holders
            assert (holder.mode, holder.reason) == ("write", "rebuild")
            assert holder.holder == held.holder
            assert ticket not in repr(holder)
        assert not await held.release()
    assert traces(fresh_redis) == []


async def test_identifiers_are_fresh(fresh_redis: RedisServer) -> None:
    seen: set[bytes] = set()
    async with catalog(fresh_redis) as lock:
        for _ in range(20):
            async with lock.writer:
                seen.add(fresh_redis.ask("GET", WRITE_KEY))
            async with lock.reader:
                seen |= set(fresh_redis.ask("SMEMBERS", READ_KEY))
    assert len(seen) == 40


async def test_fences_rise(fresh_redis: RedisServer) -> None:
    """With each write grant and each new read phase, also past a lost clock."""
    async with catalog(fresh_redis) as lock:
        fences: list[int] = []
        for mode in (*MODES, "read", "write", "write"):
            async with side(lock, mode) as held:
                fences.append(held.fence)
        assert fences == sorted(set(fences))
        ahead = int((time.time() + 60) * 1e6)
        fresh_redis.ask("HSET", STATE, "last", ahead)
        async with lock.reader as held:
            assert held.fence == ahead + 1
        fresh_redis.ask("FLUSHALL")
        async with lock.reader as held:
            assert held.fence < ahead, "nobody remembers"


@pytest.mark.usefixtures("seldom_polls")
@pytest.mark.parametrize("waits", MODES)
@pytest.mark.parametrize("holds", ["write", "read"])
async def test_waiters_of_a_pair_are_woken(
    fresh_redis: RedisServer, holds: str, waits: str
) -> None:
    if (holds, waits) == ("read", "read"):
        waits = "write"
    async with catalog(fresh_redis) as one, catalog(fresh_redis) as two:
        got: list[Held] = []

        async def wait() -> None:
            async with side(two, waits).acquire(timeout=30) as held:
                got.append(held)

        held = await side(one, holds).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await queued(fresh_redis, 1)
            await held.release()
        assert got[0].fence > held.fence
    assert traces(fresh_redis) == []


async def test_readers_first_then_writers_in_order(fresh_redis: RedisServer) -> None:
    """The published rule: readers enter past a writer that waits."""
    order: list[str] = []
    async with (
        catalog(fresh_redis) as one,
        catalog(fresh_redis) as two,
        catalog(fresh_redis) as three,
    ):

        async def write(lock: RWLock, who: str) -> None:
            async with lock.writer:
                order.append(who)

        first = await one.reader.acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(write, two, "first")
            await queued(fresh_redis, 1)
            group.start_soon(write, three, "second")
            await queued(fresh_redis, 2)
            second = await three.reader.acquire(timeout=0)
            await first.release()
            assert order == []
            await second.release()
        assert order == ["first", "second"]


async def test_the_other_policies_are_among_ours(fresh_redis: RedisServer) -> None:
    """``fair``: a reader does not pass a writer that waits."""
    async with (
        catalog(fresh_redis, policy="fair") as one,
        catalog(fresh_redis, policy="fair") as two,
        catalog(fresh_redis, policy="fair") as three,
        one.reader,
        anyio.create_task_group() as group,
    ):
        group.start_soon(two.writer.acquire().__aenter__)
        await queued(fresh_redis, 1)
        assert await three.reader.try_acquire() is None
        async with three.reader.acquire(timeout=0, policy="reader"):
            pass
        group.cancel_scope.cancel()
    await eventually(lambda: traces(fresh_redis) == [], "nothing stays")


async def test_connects_policy_is_not_this_locks(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url, policy="writer") as locks:
        lock = locks.set_rwlock("catalog", 7)
        assert lock.reader._request.policy == "reader"
        lock = locks.set_rwlock("catalog", 7, policy="writer")
        assert lock.reader._request.policy == "writer"


@pytest.mark.slow
@pytest.mark.only_on("asyncio", "the server counts")
async def test_waiting_costs_about_one_request_a_second(
    fresh_redis: RedisServer,
) -> None:
    """20 tasks of one process, for each side."""
    async with catalog(fresh_redis) as holder, catalog(fresh_redis) as lock:
        async with holder.writer:
            for mode in MODES:
                async with anyio.create_task_group() as group:
                    for _ in range(20):
                        group.start_soon(side(lock, mode).acquire().__aenter__)
                    await queued(fresh_redis, 1)
                    await anyio.sleep(0.2)  # what came before must not count
                    before, began = requests(fresh_redis), anyio.current_time()
                    await anyio.sleep(3)
                    sent = requests(fresh_redis) - before
                    took = anyio.current_time() - began
                    assert sent <= took + 1  # the keeper's
                    group.cancel_scope.cancel()
                await queued(fresh_redis, 0)
        async with holder.writer.acquire(timeout=0):
            pass


async def test_moves_and_passing_on(fresh_redis: RedisServer) -> None:
    """Without a gap: the keys change in one step."""
    async with connect(fresh_redis.url) as locks, catalog(fresh_redis) as other:
        lock = locks.set_rwlock("catalog", 7)
        held = await lock.writer.acquire()
        held = await held.downgrade()
        assert fresh_redis.ask("EXISTS", READ_KEY, WRITE_KEY) == 1
        theirs = await other.reader.acquire()
        assert await held.try_upgrade() is None, "another reader is there"
        await theirs.release()
        fresh_redis.ask("SADD", READ_KEY, "joe")
        assert await held.try_upgrade() is None, "a foreign one is there"
        fresh_redis.ask("SREM", READ_KEY, "joe")
        held = await held.upgrade(timeout=2)
        assert fresh_redis.ask("EXISTS", READ_KEY) == 0
        await held.extend(lease=90)
        assert fresh_redis.ask("PTTL", WRITE_KEY) > 80_000
        given = held.detach()
        adopted = await locks.adopt(given)
        assert adopted.resource == "catalog:7"
        assert await adopted.release()
    assert traces(fresh_redis) == []


async def test_with_other_locks_at_once(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks:
        both = locks.set_rwlock("catalog", 7), locks.rwlock("catalog", 7)
        async with locks.multi(both[0].writer, both[1].writer, locks.mutex("a", 1)):
            assert fresh_redis.ask("EXISTS", WRITE_KEY, "mutex_locks/catalog,7") == 2
