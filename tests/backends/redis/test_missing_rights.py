"""One right is missing for a command in the middle of a script: nothing stays behind.

The server ends a script where a command is refused, and what the script wrote before
stays. Whatever that was, it is taken back: at once, or when the right is there again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BadRecord,
    LockBusy,
    LockLost,
    Locks,
    LockTimeout,
    Unsupported,
    connect,
)
from aiorwlock_remote.recipes import occupancy
from aiorwlock_remote.runtime import cleanup
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.redis.rights import (
    occupancy_rules,
    pair_rules,
    rules,
    set_rules,
    user,
)
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("rights are nothing new to a loop"),
]

ALL = rules() + set_rules() + pair_rules() + occupancy_rules()
WRITES = (
    *("set", "hset", "hdel", "zadd", "zrem", "sadd", "srem"),
    *("pexpireat", "persist", "pexpire", "publish"),
)
NAME = ("thing", 1)

Got = Any


async def mutex(locks: Locks, lease: float | None) -> Got:
    return await locks.mutex(*NAME, lease=lease).try_acquire()


async def queued(locks: Locks, lease: float | None) -> Got:
    return await locks.mutex(*NAME, lease=lease).acquire(timeout=5)


async def writer(locks: Locks, lease: float | None) -> Got:
    return await locks.rwlock(*NAME, lease=lease).writer.try_acquire()


async def reader(locks: Locks, lease: float | None) -> Got:
    return await locks.rwlock(*NAME, lease=lease).reader.try_acquire()


async def pair_writer(locks: Locks, lease: float | None) -> Got:
    return await locks.set_rwlock("catalog", 7, lease=lease).writer.try_acquire()


async def pair_reader(locks: Locks, lease: float | None) -> Got:
    return await locks.set_rwlock("catalog", 7, lease=lease).reader.try_acquire()


async def permit(locks: Locks, lease: float | None) -> Got:
    return await locks.semaphore(*NAME, limit=1, lease=lease).try_acquire()


async def queued_permit(locks: Locks, lease: float | None) -> Got:
    return await locks.semaphore(*NAME, limit=1, lease=lease).acquire(timeout=5)


async def of_a_set(locks: Locks, lease: float | None) -> Got:
    pool = locks.mutex_set("proxies", lease=lease or 3600)
    return await pool.acquire("a", 0)


async def occupied(locks: Locks, lease: float | None) -> Got:
    del lease
    return await locks.occupancy().occupy(("book", 42), 5)


ASKS: dict[str, Callable[[Locks, float | None], Awaitable[Got]]] = {
    "mutex": mutex,
    "queued": queued,
    "writer": writer,
    "reader": reader,
    "pair_writer": pair_writer,
    "pair_reader": pair_reader,
    "permit": permit,
    "queued_permit": queued_permit,
    "of_a_set": of_a_set,
    "occupied": occupied,
}


async def permits(locks: Locks, lease: float | None) -> Got:
    return await locks.semaphore(*NAME, limit=3, lease=lease).try_acquire()


BESIDE = {"reader": reader, "pair_reader": pair_reader, "permits": permits}
EXCLUSIVE = {"reader": "writer", "pair_reader": "pair_writer"}
"""Who gets in only if no reader was left behind."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is sent again without a pause."""

    def no_time(attempt: int, random: float, *, first: float = 0.0) -> float:
        del attempt, random, first
        return 0.01

    for module in (cleanup, occupancy):
        monkeypatch.setattr(module, "back_off", no_time)


@pytest.mark.parametrize(
    ("lease", "known"), [(None, False), (60.0, True)], ids=["new", "known"]
)
@pytest.mark.parametrize("kind", ASKS)
async def test_a_lock_is_free_after_a_step_without_rights(
    fresh_redis: RedisServer, kind: str, lease: float | None, *, known: bool
) -> None:
    """Each right in turn; what fails is free when the right is there again."""
    server, failed = fresh_redis, list[str]()
    with user(server, ALL) as url:
        for right in WRITES:
            server.ask("FLUSHALL")
            server.ask("ZADD", "proxies", 0, "a")
            async with connect(url) as locks, connect(server.url) as others:
                if known:
                    await _in_and_out(others, kind)
                server.ask("ACL", "SETUSER", "locks", f"-{right}")
                got = None
                try:
                    got = await ASKS[kind](locks, lease)
                except (Unsupported, AcquireUncertain):
                    failed.append(right)
                server.ask("ACL", "SETUSER", "locks", f"+{right}")
                if got is not None:
                    await got.release()
                for then in (kind, EXCLUSIVE.get(kind, kind)):
                    await wait_until(partial(_in_and_out, others, then), 6)
    assert failed


@pytest.mark.parametrize("kind", ["reader", "pair_reader", "permits"])
async def test_a_good_holder_beside_holds_on(
    fresh_redis: RedisServer, kind: str
) -> None:
    """Somebody without a right joins, moves and leaves; the table has all cases."""
    server, refused = fresh_redis, set[str]()
    with user(server, ALL) as url:
        for right in (*WRITES, "del"):
            server.ask("FLUSHALL")
            server.ask("ACL", "SETUSER", "locks", f"+{right}")
            async with connect(url) as locks, connect(server.url) as others:
                beside = [await BESIDE[kind](own, 60) for own in (others, locks)]
                detached = beside[1].detach()
                server.ask("ACL", "SETUSER", "locks", f"-{right}")
                for step in (BESIDE[kind](locks, None), locks.adopt(detached)):
                    try:
                        got = await step
                        await got.release()
                    except (Unsupported, AcquireUncertain):
                        refused.add(right)
                    except LockLost:
                        pass  # a step before has ended what it had adopted
                await beside[0].extend()
                shown = [lock async for lock in others.list()]
                assert len(shown) == 1, right
                assert [lock async for lock in others.stale(older_than=60)] == []
                assert await beside[0].release() is not False, right
                server.ask("ACL", "SETUSER", "locks", f"+{right}")
    assert {"hset", "zadd", "hdel", "zrem"} <= refused


@pytest.mark.parametrize("kind", ["mutex", "reader", "permit"])
async def test_a_release_without_del_frees_the_lock(
    fresh_redis: RedisServer, kind: str
) -> None:
    """Also of a grant without end: the next step deletes the mutex key."""
    with user(fresh_redis, ALL) as url:
        async with connect(url) as locks, connect(fresh_redis.url) as others:
            held = await ASKS[kind](locks, None)
            fresh_redis.ask("ACL", "SETUSER", "locks", "-del")
            with pytest.raises(Unsupported):
                await held.release()
            for then in (kind, EXCLUSIVE.get(kind, kind)):
                assert await _in_and_out(others, then)
            fresh_redis.ask("ACL", "SETUSER", "locks", "+del")


async def test_a_published_call_can_be_released(fresh_redis: RedisServer) -> None:
    """It is not taken back by itself: its ticket may have held before."""
    name, calls = ("thing", "1"), ("hset", "persist", "set")
    with user(fresh_redis, ALL) as url:
        for right in calls:
            async with connect(url) as locks, connect(fresh_redis.url) as others:
                fresh_redis.ask("ACL", "SETUSER", "locks", f"-{right}")
                with pytest.raises(Unsupported) as caught:
                    await locks.acquire_mutex_lock(*name, "gluww")
                assert not caught.value.nothing_done
                fresh_redis.ask("ACL", "SETUSER", "locks", f"+{right}")
                await locks.release_mutex_lock(*name, "gluww")
                assert await others.acquire_mutex_lock(*name, "other")
                assert await others.release_mutex_lock(*name, "other")


async def test_a_damaged_record(fresh_redis: RedisServer) -> None:
    """Repaired, the lock is free."""
    queue = "{mutex_locks/thing,1}.queue"
    fresh_redis.ask("ZADD", queue, 1, "w:x")
    state = "{mutex_locks/thing,1}.state"
    fresh_redis.ask("HSET", state, "v", "1", "place:w:x", "rubbish")
    async with connect(fresh_redis.url) as locks, connect(fresh_redis.url) as others:
        for kind in ("mutex", "queued", "reader"):
            with pytest.raises(BadRecord):
                await ASKS[kind](locks, None)
        fresh_redis.ask("DEL", queue)
        await wait_until(partial(_in_and_out, others, "mutex"), 6)


async def _in_and_out(locks: Locks, kind: str) -> bool:
    """Whether it can be had."""
    try:
        got = await ASKS[kind](locks, 60)
    except (LockTimeout, LockBusy):
        return False
    if got is None:
        return False
    return bool(await got.release())
