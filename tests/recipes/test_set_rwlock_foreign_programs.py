"""Plain redis-py programs with the published statements, and our locks on pairs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from aiorwlock_remote import Held, LockTimeout
from aiorwlock_remote.core.commands import NotHeld, Release, Released, Renew, Renewed
from aiorwlock_remote.core.ticket import holder_of
from tests.backends.redis.connections import eventually
from tests.recipes.fix_pairs import (
    EXPIRY,
    MODES,
    NAME,
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
from tests.recipes.published import PublishedPair
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("other programs are nothing new to it"),
]

TWO = [(ours, theirs) for ours in MODES for theirs in MODES]


@contextmanager
def other(server: RedisServer, who: str = "joe") -> Iterator[PublishedPair]:
    program = PublishedPair(server, NAME, who)
    yield program
    program.close()


@pytest.mark.parametrize(("ours", "theirs"), TWO)
async def test_each_keeps_the_other_out(
    fresh_redis: RedisServer, ours: str, theirs: str
) -> None:
    """But for readers, who share."""
    share = ours == theirs == "read"
    with other(fresh_redis) as foreign:
        async with catalog(fresh_redis) as lock:
            assert foreign.enter(theirs)
            held = await side(lock, ours).try_acquire()
            assert (held is not None) == share
            if held is None:
                with pytest.raises(LockTimeout) as caught:
                    await side(lock, ours).acquire(timeout=0)
                assert caught.value.holders == (f"foreign {holder_of('joe')}",)
            else:
                assert await held.release()
            assert foreign.leave(theirs)
            assert not foreign.leave(theirs)
            async with side(lock, ours).acquire(timeout=0):
                assert foreign.enter(theirs) == share
                assert foreign.leave(theirs) == share
            assert foreign.enter(theirs)
            assert foreign.leave(theirs)
        assert traces(fresh_redis) == []


@pytest.mark.usefixtures("seldom_polls")
async def test_plain_commands(fresh_redis: RedisServer) -> None:
    """What an operator types counts as much."""
    async with catalog(fresh_redis) as lock:
        fresh_redis.ask("SADD", READ_KEY, "ann", "bob")
        assert await lock.writer.try_acquire() is None
        fresh_redis.ask("SREM", READ_KEY, "ann")
        assert await lock.writer.try_acquire() is None
        fresh_redis.ask("SREM", READ_KEY, "bob")
        async with lock.writer.acquire(timeout=0):
            pass
        fresh_redis.ask("SET", WRITE_KEY, "ann", "NX", "PX", 300)
        assert await lock.reader.try_acquire() is None
        async with lock.reader.acquire(timeout=30):  # by the timer
            pass


async def test_ours_and_theirs_read_together(fresh_redis: RedisServer) -> None:
    """Neither ends the other's phase; a writer waits for both."""
    with other(fresh_redis) as foreign:
        async with catalog(fresh_redis) as one, catalog(fresh_redis) as two:
            first = await one.reader.acquire()
            assert foreign.enter("read")
            assert await two.writer.try_acquire() is None
            assert await first.release()
            assert fresh_redis.ask("SMEMBERS", READ_KEY) == [b"joe"]
            assert await two.writer.try_acquire() is None
            second = await one.reader.acquire()
            assert second.fence > first.fence
            assert foreign.leave("read")
            assert await two.writer.try_acquire() is None
            assert await second.release()
            async with two.writer.acquire(timeout=0):
                assert not foreign.enter("read")


@pytest.mark.parametrize("mode", MODES)
async def test_ours_has_expired_and_theirs_took_over(
    fresh_redis: RedisServer, mode: str
) -> None:
    """Our release and renewal change nothing of theirs, and say so."""
    with other(fresh_redis) as foreign:
        async with catalog(fresh_redis) as lock:
            store = store_of(lock)
            await die(lock, mode, "dead", 300_000)
            assert not foreign.enter("write")
            await anyio.sleep(0.35)
            if mode == "read":  # they know of no leases: one of us comes by
                await lock.reader.locked()
                assert not foreign.enter("write"), "looking changes nothing"
                async with lock.reader:
                    pass
            assert foreign.enter("write")
            renewal = Renew((("dead", 300_000),))
            assert await store.step(TARGET, renewal) == Renewed((NotHeld("expired"),))
            released = await store.step(TARGET, Release("dead"))
            assert released == Released(held=False, reason="expired")
            assert fresh_redis.ask("GET", WRITE_KEY) == b"joe"
            assert foreign.leave("write")


@pytest.mark.parametrize("events", ["Kgx", ""])
@pytest.mark.parametrize(
    ("ours", "theirs"), [pair for pair in TWO if pair != ("read", "read")]
)
async def test_waiters_for_foreign_holders(
    start_redis: StartRedis,
    request: pytest.FixtureRequest,
    events: str,
    ours: str,
    theirs: str,
) -> None:
    """Woken by the event, else there at the next poll."""
    if events:
        request.getfixturevalue("seldom_polls")
    server = start_redis(config={"notify-keyspace-events": events or '""'})
    key = WRITE_KEY if theirs == "write" else READ_KEY
    channel = f"__keyspace@0__:{key}"
    got: list[Held] = []
    with other(server) as foreign:
        assert foreign.enter(theirs)

        async with catalog(server) as lock, anyio.create_task_group() as group:

            async def wait() -> None:
                async with side(lock, ours) as held:
                    got.append(held)

            def listens() -> bool:
                return bool(server.ask("PUBSUB", "NUMSUB", channel)[1] == 1)

            group.start_soon(wait)
            await queued(server, 1)
            if events:
                await eventually(listens, "it listens")
            assert foreign.leave(theirs)
            await eventually(lambda: bool(got), "got it")
        await eventually(lambda: not listens(), "listens no more")


async def test_among_many_of_ours(fresh_redis: RedisServer) -> None:
    """One foreign reader among hundreds of ours is not overlooked."""
    async with catalog(fresh_redis) as lock:
        got = []
        fresh_redis.ask("SADD", READ_KEY, "joe")
        async with anyio.create_task_group() as group:

            async def read() -> None:
                got.append(await lock.reader.acquire())

            for _ in range(300):
                group.start_soon(read)
        assert fresh_redis.ask("ZCARD", EXPIRY) == 300
        for held in got:
            assert await held.release()
        assert await lock.writer.try_acquire() is None
        assert fresh_redis.ask("SMEMBERS", READ_KEY) == [b"joe"]
        assert fresh_redis.ask("EXISTS", STATE) == 1


@pytest.mark.slow
async def test_side_by_side(start_redis: StartRedis) -> None:
    """Two programs of theirs and 10 tasks of ours: never a writer beside anybody."""
    server = start_redis(config={"notify-keyspace-events": "Kgx"})
    inside: list[tuple[str, str]] = []
    guard = threading.Lock()
    turns = {"ours": 0, "theirs": 0}
    clashes: list[str] = []
    done = threading.Event()

    def enter(mode: str, who: str) -> None:
        with guard:
            if inside and (mode == "write" or any(m == "write" for m, _ in inside)):
                clashes.append(f"{who} {mode} met {inside}")
            inside.append((mode, who))
            turns[who] += 1

    def leave(mode: str, who: str) -> None:
        with guard:
            inside.remove((mode, who))

    def foreign(mode: str) -> None:
        with other(server, f"joe-{mode}") as theirs:
            while not done.wait(0.001):
                if theirs.enter(mode):
                    enter(mode, "theirs")
                    done.wait(0.002)
                    leave(mode, "theirs")
                    assert theirs.leave(mode)

    async with catalog(server) as lock:

        async def work(number: int) -> None:
            mode = MODES[number % 2]
            for _ in range(60):
                async with side(lock, mode):
                    enter(mode, "ours")
                    await anyio.sleep(0.002)
                    leave(mode, "ours")
                await anyio.sleep(0.004)

        threads = [threading.Thread(target=foreign, args=(mode,)) for mode in MODES]
        for thread in threads:
            thread.start()
        try:
            with anyio.fail_after(100):
                async with anyio.create_task_group() as group:
                    for number in range(10):
                        group.start_soon(work, number)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert clashes == []
    assert turns["ours"] == 600
    assert turns["theirs"] > 10
