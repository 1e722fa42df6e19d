"""Locks on pairs of keys when something goes wrong on the way."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import BackendUnavailable, LockLost, connect
from aiorwlock_remote.core.commands import NotHeld, Release, Released, Renew, Renewed
from aiorwlock_remote.errors import AcquireUncertain
from tests.backends.redis.connections import eventually
from tests.recipes.fix_pairs import (
    EXPIRY,
    MODES,
    READ_KEY,
    STATE,
    TARGET,
    WRITE_KEY,
    catalog,
    die,
    queued,
    side,
    store_of,
    traces,
)
from tests.renewals import renewed
from tests.runtime.cancel_at import CancelAt
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_anywhere(
    fresh_redis: RedisServer, mode: str, *, waits: bool, late: bool
) -> None:
    """At each suspension of acquire, hold and release: nothing stays behind."""
    async with catalog(fresh_redis) as lock, catalog(fresh_redis) as other:

        async def use() -> None:
            async with side(lock, mode):
                await anyio.lowlevel.checkpoint()

        for k in range(1, 40):
            holder = await other.writer.acquire() if waits else None
            done = CancelAt(use(), k, lambda: scope.cancel(), late=late)  # noqa: PLW0108
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:
                    if holder is not None:
                        group.start_soon(holder.release)
                    await done
            async with other.writer.acquire(timeout=5):
                pass
            await eventually(lambda: traces(fresh_redis) == [], "nothing stays")
            if done.suspensions < k:
                break
        else:
            pytest.fail("it never ends")


async def test_cancelled_while_it_waits(fresh_redis: RedisServer) -> None:
    async with catalog(fresh_redis) as lock, catalog(fresh_redis) as other:
        async with other.writer:
            for mode in MODES:
                async with anyio.create_task_group() as group:
                    group.start_soon(side(lock, mode).acquire().__aenter__)
                    await queued(fresh_redis, 1)
                    group.cancel_scope.cancel()
                await queued(fresh_redis, 0)
        assert traces(fresh_redis) == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_answer(start_redis: StartRedis, mode: str) -> None:
    """The script ran, its answer was lost: the ticket gives it back."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=2) as locks:
            lock = side(locks.set_rwlock("catalog", 7), mode)
            for wait in (0, 5):
                proxy.cut_after(1, to="client")
                with pytest.raises(BackendUnavailable):
                    await lock.acquire(timeout=wait)
                await eventually(lambda: traces(server) == [], "given back")
            held = await lock.acquire(timeout=5)
            assert await held.release()


async def test_an_acquire_with_an_unknown_outcome(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=1) as locks:
            proxy.refuse()
            proxy.cut_after(1, to="client")
            with pytest.raises(AcquireUncertain):
                await locks.set_rwlock("catalog", 7).writer.acquire()
            proxy.accept()
            await eventually(lambda: traces(server) == [], "given back late")


async def test_a_waiter_survives_a_lost_connection(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with catalog(server) as other, connect(proxy.url) as locks:
            lock = locks.set_rwlock("catalog", 7)
            held = await other.writer.acquire()
            got: list[str] = []

            async def wait() -> None:
                async with lock.reader as mine:
                    got.append(mine.mode)

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await queued(server, 1)
                proxy.cut()
                await held.release()
                await eventually(lambda: got == ["read"], "got it", 8)
    assert traces(server) == []


async def test_out_of_memory(start_redis: StartRedis) -> None:
    """Who wants in is refused, who leaves is not."""
    server = start_redis(config={"maxmemory-policy": "noeviction"})
    async with catalog(server) as lock, catalog(server) as other:
        for mode in MODES:
            async with side(lock, mode) as held:
                server.ask("CONFIG", "SET", "maxmemory", 1)
                with pytest.raises(Exception, match="OOM"):
                    await side(other, mode).try_acquire()
                await held.extend()
            assert server.ask("EXISTS", READ_KEY, WRITE_KEY) == 0
            server.ask("CONFIG", "SET", "maxmemory", 0)


# ------------------------------------------------------------------------------
# Readers and writers on a pair of keys that end early, and what others did to them.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("seldom_polls")
async def test_a_dead_holder(fresh_redis: RedisServer, mode: str) -> None:
    """The next gets in when its lease ends, by a timer; nobody has to help."""
    async with catalog(fresh_redis) as dead, catalog(fresh_redis) as lock:
        fence = await die(dead, mode, "dead", 700_000)
        started = anyio.current_time()
        async with lock.writer.acquire(timeout=30) as held:
            assert anyio.current_time() - started > 0.6
            assert held.fence > fence
            late = await store_of(dead).step(TARGET, Release("dead"))
            assert late == Released(held=False, reason="expired")
            held.check()
            renewal = await store_of(dead).step(TARGET, Renew((("dead", 10**6),)))
            assert renewal == Renewed((NotHeld("expired"),))
            await held.extend()
    assert traces(fresh_redis) == []


async def test_one_dead_reader_of_two(fresh_redis: RedisServer) -> None:
    """It is taken out by whoever comes next; the other stays."""
    async with catalog(fresh_redis) as dead, catalog(fresh_redis) as lock:
        await die(dead, "read", "dead", 300_000)
        async with lock.reader as held:
            await anyio.sleep(0.35)
            assert fresh_redis.ask("SISMEMBER", READ_KEY, "dead") == 1
            assert await _try_read(lock) == held.fence
            assert fresh_redis.ask("SISMEMBER", READ_KEY, "dead") == 0
            assert fresh_redis.ask("SCARD", READ_KEY) == 1
            late = await store_of(dead).step(TARGET, Release("dead"))
            assert late == Released(held=False, reason="expired")
    assert traces(fresh_redis) == []


async def _try_read(lock: Any) -> int:  # noqa: ANN401 - an RWLock
    """Another task, which may."""
    fences: list[int] = []

    async def read() -> None:
        async with lock.reader.acquire(timeout=0) as held:
            fences.append(held.fence)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
    return fences[0]


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("mode", MODES)
async def test_the_keeper_renews(fresh_redis: RedisServer, mode: str) -> None:
    async with (
        catalog(fresh_redis) as lock,
        catalog(fresh_redis) as other,
        side(lock, mode) as held,
    ):
        await renewed(held)
        assert await other.writer.try_acquire() is None


@pytest.mark.parametrize(
    ("mode", "does", "reason"),
    [
        ("write", ("DEL", WRITE_KEY), "forced"),
        ("write", ("SET", WRITE_KEY, "thief"), "stolen"),
        ("read", ("DEL", READ_KEY), "forced"),
        ("read", ("SREM", READ_KEY, "mine"), "forced"),
    ],
)
@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("reported", ["by the keeper", "by its release"])
async def test_taken_away_by_others(
    fresh_redis: RedisServer,
    mode: str,
    does: tuple[str, ...],
    reason: str,
    reported: str,
) -> None:
    async with catalog(fresh_redis) as lock:
        with pytest.raises(LockLost) as caught:
            async with side(lock, mode):
                mine = fresh_redis.ask("SRANDMEMBER", READ_KEY) or b""
                fresh_redis.ask(*(mine if part == "mine" else part for part in does))
                if reported == "by the keeper":
                    with anyio.fail_after(5):
                        await anyio.sleep_forever()
        assert caught.value.reason == reason
        if reason == "stolen":
            assert fresh_redis.ask("GET", WRITE_KEY) == b"thief"
            assert fresh_redis.ask("DEL", WRITE_KEY) == 1
        async with lock.writer.acquire(timeout=0):
            pass
    assert traces(fresh_redis) == []


async def test_one_reader_taken_out_of_two(fresh_redis: RedisServer) -> None:
    """The other goes on, and holds alone."""
    async with catalog(fresh_redis) as one, catalog(fresh_redis) as two:
        first = await one.reader.acquire()
        mine = fresh_redis.ask("SRANDMEMBER", READ_KEY)
        second = await two.reader.acquire()
        fresh_redis.ask("SREM", READ_KEY, mine)
        with pytest.raises(LockLost, match="forced"):
            await first.extend()
        upgraded = await second.try_upgrade()
        assert upgraded is not None
        assert await upgraded.release()
    assert traces(fresh_redis) == []


async def test_readers_are_void_once_a_writer_was_there(
    fresh_redis: RedisServer,
) -> None:
    """A reader whose set was deleted does not come back, nor its fence."""
    async with catalog(fresh_redis, on_lost="flag") as one, catalog(fresh_redis) as two:
        stale = await one.reader.acquire()
        fresh_redis.ask("DEL", READ_KEY)
        async with two.writer as writer:
            pass
        async with two.reader as reader:
            assert stale.fence < writer.fence < reader.fence
            assert not await stale.release()
            reader.check()
            assert fresh_redis.ask("SCARD", READ_KEY) == 1


async def test_the_record_of_readers_is_kept_while_they_hold(
    fresh_redis: RedisServer,
) -> None:
    """The set knows no expiry: without the others they would be there for ever."""
    async with catalog(fresh_redis) as lock:
        async with lock.writer:
            assert fresh_redis.ask("PTTL", STATE) > 3_600_000
        await die(lock, "read", "dead", 200_000)
        for key in (STATE, EXPIRY, READ_KEY):
            assert fresh_redis.ask("PTTL", key) == -1, key
        await eventually(
            lambda: fresh_redis.ask("ZCOUNT", EXPIRY, "-inf", _now(fresh_redis)) == 1,
            "its lease is over",
        )
        async with lock.writer.acquire(timeout=0):
            assert fresh_redis.ask("PTTL", STATE) > 3_600_000


def _now(server: RedisServer) -> str:
    seconds, micros = server.ask("TIME")
    return str(int(seconds) * 10**6 + int(micros))


@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_record(fresh_redis: RedisServer, mode: str) -> None:
    """Nobody acquires until its holder knows; then its identifier is removed."""
    async with (
        catalog(fresh_redis, on_lost="flag") as one,
        catalog(fresh_redis) as two,
    ):
        first = await side(one, mode).acquire()
        fresh_redis.ask("DEL", STATE, EXPIRY)
        assert await two.writer.try_acquire() is None
        assert await first.release()
        second = await side(one, mode).acquire()
        fresh_redis.ask("DEL", STATE, EXPIRY)
        seen = await two.info()
        assert [holder.foreign for holder in seen.holders] == [True]
        if mode == "write":
            assert seen.stale() is None, "it ends with its lease"
        fresh_redis.ask("SADD", READ_KEY, "theirs")
        with pytest.raises(LockLost):
            await second.extend()
        assert fresh_redis.ask("EXISTS", WRITE_KEY) == 0
        assert fresh_redis.ask("SMEMBERS", READ_KEY) == [b"theirs"]
        assert await two.writer.try_acquire() is None
        fresh_redis.ask("DEL", READ_KEY)
        async with two.writer.acquire(timeout=0):
            pass


@pytest.mark.parametrize("mode", MODES)
async def test_closing_gives_back(fresh_redis: RedisServer, mode: str) -> None:
    async with catalog(fresh_redis) as lock:
        held = await side(lock, mode).acquire()
        assert traces(fresh_redis) != []
    assert not held.valid
    assert traces(fresh_redis) == []


async def test_waiting_when_the_connection_ends(fresh_redis: RedisServer) -> None:
    """Leaving ``connect`` withdraws the place."""
    async with catalog(fresh_redis) as holder, holder.writer:
        async with anyio.create_task_group() as group, catalog(fresh_redis) as lock:
            group.start_soon(_closed, lock)
            await queued(fresh_redis, 1)
        await queued(fresh_redis, 0)


async def _closed(lock: Any) -> None:  # noqa: ANN401 - an RWLock
    with pytest.raises(Exception, match="closed"):
        await lock.reader.acquire()
