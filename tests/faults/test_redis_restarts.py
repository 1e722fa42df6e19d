"""A server that goes away: stopped, down, restarted, emptied. Fences rise."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Held,
    LockLost,
    connect,
)
from tests.backends.redis.connections import eventually
from tests.faults.redis_waits import killed, lost, refused, renewed, take_turn, waits
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("a server that is gone is nothing new to it"),
]

LEASE = 1.0


async def test_grants_and_waiters_survive_a_restart_with_aof(
    start_redis: StartRedis,
) -> None:
    """SIGKILL, and everything that was answered is on disk."""
    server = start_redis(config={"appendonly": "yes", "appendfsync": "always"})
    async with connect(server.url) as locks, connect(server.url) as others:
        held = await locks.mutex("kept", 1).acquire(lease=3)
        read = await locks.rwlock("kept", 2).reader.acquire(lease=3)
        entered: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(take_turn, others.mutex("kept", 1), entered)
            await waits(server, locks.mutex("kept", 1))
            server.restart()
            await renewed(server, held)
            read.check()
            assert entered == []
            assert await held.release()
        assert entered[0] > held.fence
        assert await read.release()


async def gone(server: RedisServer, held: Held, how: str) -> None:
    """Nothing is known of a grant any more."""
    if how == "restart":
        server.restart()
    else:
        server.ask("FLUSHALL")
    await eventually(lambda: not held.valid, "the loss is known")


@pytest.mark.parametrize("mode", ["reader", "writer"])
@pytest.mark.parametrize("how", ["restart", "FLUSHALL"])
async def test_a_server_that_forgot(
    start_redis: StartRedis, how: str, mode: str
) -> None:
    """A loss is found at the next renewal, within the lease; the next fence is higher.

    A restart here is SIGKILL without persistence.
    """
    server = start_redis()
    async with connect(server.url) as locks:
        rwlock = locks.rwlock("kept", 1, lease=LEASE)
        side = rwlock.reader if mode == "reader" else rwlock.writer
        with pytest.raises(LockLost) as caught:
            async with side.acquire() as held:
                await gone(server, held, how)
                await anyio.sleep_forever()
        assert caught.value.fence == held.fence
        assert caught.value.reason in {"expired", "forced", "unreachable"}
        async with rwlock.writer.acquire(timeout=5) as after:
            assert after.fence > held.fence


@pytest.mark.parametrize("how", ["restart", "FLUSHALL"])
async def test_a_waiter_at_a_server_that_lost_its_data(
    start_redis: StartRedis, how: str
) -> None:
    """Acquires by asking again; the loser knows, and has the older fence."""
    server = start_redis()
    async with connect(server.url) as locks, connect(server.url) as others:
        held = await locks.mutex("kept", 1).acquire(lease=LEASE)
        fences: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(take_turn, others.mutex("kept", 1), fences)
            await waits(server, locks.mutex("kept", 1))
            await gone(server, held, how)
        assert fences[0] > held.fence
        with pytest.raises(LockLost):
            held.check()
        with pytest.raises(LockLost):
            await held.release()


async def test_fences_rise_over_everything(start_redis: StartRedis) -> None:
    """Release, expiry, FLUSHALL, restart, FLUSHALL: never back."""
    server = start_redis()
    fences: list[int] = []
    async with connect(server.url) as locks:
        mutex = locks.mutex("rising", 1)
        await take_turn(mutex, fences)
        assert await locks.acquire_mutex_lock("rising", 1, "gluww")
        (foreign,) = (await mutex.info()).holders
        fences.append(foreign.fence or 0)
        server.ask("PEXPIRE", "mutex_locks/rising,1", 1)
        await take_turn(mutex, fences)
        server.ask("FLUSHALL")
        await take_turn(mutex, fences)
        await killed(server, locks)
        server.start()
        await take_turn(mutex, fences)
        server.ask("FLUSHALL")
        await take_turn(mutex, fences)
    assert fences == sorted(set(fences))


async def test_the_server_is_stopped_for_longer_than_it_may_be_silent(
    start_redis: StartRedis,
) -> None:
    """SIGSTOP, SIGCONT: noticed in time, and whatever was on its way is undone."""
    server = start_redis()
    url = f"{server.url}?command_timeout=0.3"
    async with connect(url, connect_timeout=2, lease=20) as locks:
        held = await locks.mutex("kept", 1).acquire()
        server.pause()
        async with anyio.create_task_group() as group:
            group.start_soon(refused, locks.mutex("stopped", 1))
            await eventually(lambda: lost(locks), "silent")
            server.resume()
        # What it was sent before it was stopped may have been carried out since then.
        held.check()
        async with locks.mutex("stopped", 1).acquire(timeout=30):
            pass
        assert await held.release()


@pytest.mark.parametrize("timeout", [0, 5, None])
async def test_a_server_that_is_down(
    start_redis: StartRedis, timeout: float | None
) -> None:
    """A request never sent is not uncertain: it fails after ``connect_timeout``."""
    server = start_redis()
    async with connect(server.url, connect_timeout=2) as locks:
        await killed(server, locks)
        with anyio.fail_after(5), pytest.raises(BackendUnavailable):
            await locks.mutex("down", 1).acquire(timeout)
        server.start()
        await eventually(lambda: not lost(locks), "connected again")
        async with locks.mutex("down", 1).acquire(timeout=10):
            pass


@pytest.mark.parametrize("timeout", [0, 1.5, None])
async def test_a_silent_server_is_noticed_in_time(
    start_redis: StartRedis, timeout: float | None
) -> None:
    """Nobody knows what it did; nobody is kept waiting for that."""
    server = start_redis()
    url = f"{server.url}?command_timeout=0.5"
    async with connect(url, connect_timeout=2) as locks:
        server.pause()
        with anyio.fail_after(20), pytest.raises(AcquireUncertain):
            await locks.mutex("silent", 1).acquire(timeout)
        server.resume()


async def test_a_release_does_not_wait_for_a_dead_server(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    async with connect(server.url, connect_timeout=2) as locks:
        held = await locks.mutex("gone", 1).acquire()
        await killed(server, locks)
        with anyio.fail_after(5), pytest.raises(BackendUnavailable):
            await held.release()
