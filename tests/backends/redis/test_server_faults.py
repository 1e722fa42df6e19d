"""What a server does that is up: forgets scripts, pauses, refuses, hangs up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import hiredis
import pytest
import redis
from anyio.to_thread import run_sync

from aiorwlock_remote import (
    BackendError,
    BackendUnavailable,
    Locks,
    LockTimeout,
    Unsupported,
    connect,
)
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.faults.redis_waits import (
    REFUSED,
    lost,
    refused,
    renewed,
    still_works,
    take_turn,
    waits,
)
from tests.servers.fix_redis import StartRedis
from tests.servers.process import until
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.usefixtures("renewed_often"),
    pytest.mark.anyio,
    pytest.mark.no_uvloop("what the server does is nothing new to it"),
]


TURNS = 2


def pool_of(locks: Locks) -> MutexSet:
    """Five mutexes that are there already."""
    return locks.mutex_set("proxies", lease=20)


@pytest.mark.slow
async def test_scripts_are_forgotten_under_load(fresh_redis: RedisServer) -> None:
    """SCRIPT FLUSH again and again: nobody notices, the keeper neither.

    A command is refused if the scripts came back between it and its successor. It says
    that it was not carried out, and is sent again, whichever it is.
    """
    fences: list[int] = []
    done = 0

    async def work(locks: Locks, number: int) -> None:
        nonlocal done
        for turn in range(TURNS):
            rwlock = locks.rwlock("load", number % 2, lease=20)
            side = rwlock.reader if turn % 3 == 0 else rwlock.writer
            async with side.acquire(timeout=30) as held:
                fences.append(held.fence)
                await held.extend()
                if turn == 1:
                    await held.downgrade()
            if tried := await locks.mutex("tried", number).try_acquire():
                await tried.release()
            async with locks.multi(
                locks.mutex("first", number % 3), locks.mutex("second", number % 3)
            ):
                assert await locks.mutex("first", number % 3).locked()
            ticket = (str(number), f"ticket{number}")
            await locks.acquire_writer_lock("published", *ticket)
            await locks.release_writer_lock("published", *ticket)
            async with pool_of(locks).acquire(timeout=30):
                pass
            if turn == 1:
                async with locks.occupancy().occupy(("book", number), 30):
                    pass
        done += 1

    async with connect(fresh_redis.url) as locks, connect(fresh_redis.url) as others:
        held = await locks.mutex("kept", 1).acquire()
        for number in range(5):
            await pool_of(locks).create(str(number))
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(work, locks if number % 2 else others, number)
            flushes = 0
            while done < 10:
                fresh_redis.ask("SCRIPT", "FLUSH")
                flushes += 1
                await anyio.sleep(0.002)
        assert flushes > 5
        assert len(fences) == 10 * TURNS
        fresh_redis.ask("SCRIPT", "FLUSH")
        await still_works(fresh_redis, locks, held)


@pytest.mark.parametrize("kind", ["ALL", "WRITE"])
async def test_clients_are_paused(start_redis: StartRedis, kind: str) -> None:
    server = start_redis()
    async with connect(server.url) as locks:
        held = await locks.mutex("kept", 1).acquire()
        server.ask("CLIENT", "PAUSE", 300, kind)
        async with locks.mutex("paused", 1).acquire(timeout=10):
            held.check()
        await still_works(server, locks, held)


async def test_the_server_sleeps(start_redis: StartRedis) -> None:
    server = start_redis(config={"enable-debug-command": "yes"})
    async with connect(server.url) as locks:
        held = await locks.mutex("kept", 1).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(run_sync, server.ask, "DEBUG", "SLEEP", "0.3")
            for number in range(20):
                async with locks.mutex("asleep", number).acquire(timeout=10):
                    held.check()
                await anyio.sleep(0.02)
        await still_works(server, locks, held)


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """A foreign script runs for ever, until the block ends."""

    def run() -> None:
        with (
            redis.Redis.from_url(server.url) as plain,
            pytest.raises(redis.ResponseError, match="killed"),
        ):
            plain.eval("while true do end", 0)

    def refuses() -> bool:
        with redis.Redis.from_url(server.url) as plain:
            try:
                plain.get("key")
            except redis.ResponseError as exc:
                return str(exc).startswith("BUSY")
        return False

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(refuses, "the server is busy")
        yield
    finally:
        server.ask("SCRIPT", "KILL")
        thread.join()


async def test_a_foreign_script_keeps_it_busy(start_redis: StartRedis) -> None:
    server = start_redis(config={"busy-reply-threshold": "10"})
    async with (
        connect(server.url, connect_timeout=1) as locks,
        connect(server.url) as others,
    ):
        held = await locks.mutex("kept", 1).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(take_turn, others.mutex("kept", 1), [])
            await waits(server, locks.mutex("kept", 1))
            with busy(server):
                with pytest.raises(REFUSED):
                    await locks.mutex("busy", 1).try_acquire()
                await refused(locks.mutex("busy", 1))
            assert await held.release()
        assert not await locks.mutex("busy", 1).locked()


async def test_out_of_memory(start_redis: StartRedis) -> None:
    """No new grants, but what is held is renewed and released."""
    server = start_redis(config={"maxmemory-policy": "noeviction"})
    async with connect(server.url) as locks:
        lock = locks.mutex("kept", 1)
        held = await lock.acquire()
        read = await locks.rwlock("kept", 2).reader.acquire()
        server.ask_all(*[("SET", f"filler:{n}", "x" * 10_000) for n in range(200)])
        server.ask("CONFIG", "SET", "maxmemory", "2mb")
        with pytest.raises(hiredis.ReplyError, match="OOM"):
            server.ask("SET", "more", "x")
        for full in (locks.mutex("new", 1), locks.rwlock("new", 1).reader):
            with pytest.raises(BackendError, match="OOM") as caught:
                await full.acquire(timeout=5)
            assert not isinstance(caught.value, BackendUnavailable)
            with pytest.raises(BackendError, match="OOM"):
                await full.try_acquire()
        await renewed(server, held)
        await renewed(server, read)
        assert await held.release()
        assert await read.release()
        assert server.ask("KEYS", "mutex_locks/*") == []
        server.ask("CONFIG", "SET", "maxmemory", "0")
        async with lock.acquire(timeout=5):
            pass


async def test_the_primary_becomes_a_replica_and_comes_back(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    async with connect(server.url) as locks:
        held = await locks.mutex("kept", 1).acquire()
        server.ask("REPLICAOF", "127.0.0.1", 1)
        fences: list[int] = []
        async with anyio.create_task_group() as group:
            # READONLY says that nothing was done: it is asked again until it is let in.
            group.start_soon(take_turn, locks.mutex("new", 1), fences)
            # It hangs up: whoever answers there next may be the primary.
            await eventually(lambda: lost(locks), "refused")
            server.ask("REPLICAOF", "NO", "ONE")
        assert len(fences) == 1
        await still_works(server, locks, held)
        assert not await locks.mutex("new", 1).locked()


def loading(server: RedisServer) -> bool:
    try:
        server.ask("PING")
    except hiredis.ReplyError as exc:
        return str(exc).startswith("LOADING")
    return False


async def test_a_server_that_is_loading(start_redis: StartRedis) -> None:
    """It answers LOADING while it reads its data, here for the second time."""
    slow = {"key-load-delay": "20000", "loading-process-events-interval-bytes": "1024"}
    server = start_redis(config={"enable-debug-command": "yes"} | slow)
    server.ask_all(*[("SET", f"filler{n}", "x" * 1024) for n in range(250)])
    async with connect(server.url) as locks:
        held = await locks.mutex("kept", 1).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(run_sync, server.ask, "DEBUG", "RELOAD")
            await run_sync(until, partial(loading, server), "it answers LOADING")
            # It answers only between two keys, which may be before or after that time.
            with pytest.raises((LockTimeout, BackendUnavailable)) as caught:
                await locks.mutex("new", 1).acquire(timeout=0.01)
            error = caught.value
            if isinstance(error, LockTimeout):
                assert error.unanswered
            else:
                assert "LOADING" in str(error)
            await run_sync(server.ask, "CONFIG", "SET", "key-load-delay", "0")
            async with locks.mutex("new", 1).acquire(timeout=30):
                pass
        await still_works(server, locks, held)


async def test_our_connections_are_killed(fresh_redis: RedisServer) -> None:
    """CLIENT KILL by somebody else: what is held and who waits go on."""
    async with connect(fresh_redis.url) as locks, connect(fresh_redis.url) as others:
        lock = others.mutex("kept", 1)
        held = await locks.mutex("kept", 1).acquire()
        await renewed(fresh_redis, held)  # over a connection of the keeper's own
        fences: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(take_turn, lock, fences)
            await waits(fresh_redis, lock)
            for kind in ("normal", "pubsub"):
                fresh_redis.ask("CLIENT", "KILL", "TYPE", kind)
            await renewed(fresh_redis, held)
            assert await held.release()
        assert fences > [held.fence]
        async with locks.mutex("kept", 1).acquire(timeout=5):
            pass


async def test_without_a_connection_for_the_keeper(start_redis: StartRedis) -> None:
    """``maxclients``: who is in goes on, over the connection that there is."""
    server = start_redis()
    with redis.Redis.from_url(server.url) as plain:
        plain.ping()
        async with connect(server.url) as locks:
            plain.config_set("maxclients", 1)
            held = await locks.mutex("kept", 1).acquire()
            for _ in range(2):
                ends = plain.pexpiretime("mutex_locks/kept,1")
                await eventually(
                    lambda: plain.pexpiretime("mutex_locks/kept,1") > ends,  # noqa: B023 - awaited here
                    "renewed",
                )
                held.check()
            plain.config_set("maxclients", 100)
            await eventually(lambda: len(plain.client_list()) == 3, "it has its own")
            await still_works(server, locks, held)


async def test_hello_was_renamed(start_redis: StartRedis) -> None:
    """The server is new enough, and the error says what it lacks."""
    server = start_redis(config={"rename-command": "HELLO ''"})
    with pytest.raises(Unsupported) as caught:
        await connect(server.url)
    message = str(caught.value)
    assert "does not know the command HELLO" in message
    assert "rename-command" in message
    assert "older" not in message
