"""A program in plain redis-py with the published statements, and our locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import anyio
import pytest

from aiorwlock_remote import Held, LockLost, Locks, LockTimeout, connect
from aiorwlock_remote.locks.lock import Mutex, ReaderLock, WriterLock
from tests.backends.redis.connections import eventually
from tests.faults.redis_foreign import NAME, SEAT, Foreign
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("other programs are nothing new to it"),
]

FREE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
QUEUE = f"{{{SEAT}}}.queue"

Kind = Literal["mutex", "reader", "writer"]
KINDS: tuple[Kind, ...] = ("mutex", "reader", "writer")
AnyLock = Mutex | ReaderLock | WriterLock


@pytest.fixture
def foreign(fresh_redis: RedisServer) -> Iterator[Foreign]:
    program = Foreign(fresh_redis)
    yield program
    program.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


def lock_of(locks: Locks, kind: Kind, lease: float = 30) -> AnyLock:
    rwlock = locks.rwlock("foobar", 123, lease=lease)
    if kind == "mutex":
        return locks.mutex("foobar", 123, lease=lease)
    return rwlock.reader if kind == "reader" else rwlock.writer


@pytest.mark.parametrize("ms", [None, 60_000], ids=["NX", "NX PX"])
async def test_theirs_keeps_ours_out(
    fresh_redis: RedisServer, foreign: Foreign, kind: Kind, ms: int | None
) -> None:
    async with connect(fresh_redis.url) as locks:
        lock = lock_of(locks, kind)
        assert foreign.take(NAME, "gluww", ms)
        assert await lock.try_acquire() is None
        with pytest.raises(LockTimeout) as caught:
            await lock.acquire(timeout=0.05)
        assert caught.value.holders[0].startswith("foreign ")
        assert await lock.locked()
        assert fresh_redis.ask("GET", SEAT).startswith(b"gluww,"), "not touched"
        assert foreign.free(NAME, "gluww")
        held = await lock.try_acquire()
        assert held is not None
        assert await held.release()


async def test_theirs_is_released_by_one_command_if_the_server_has_one(
    fresh_redis: RedisServer,
) -> None:
    """``DELIFEQ`` of Valkey 9 or ``DELEX`` of Redis 8.4; the script everywhere else."""
    known = {name.upper() for name in fresh_redis.ask("COMMAND", "LIST")}
    free: tuple[str | int, ...] = ("EVAL", FREE, 1, SEAT, "gluww,1795649333")
    if b"DELIFEQ" in known:
        free = ("DELIFEQ", SEAT, "gluww,1795649333")
    elif b"DELEX" in known:
        free = ("DELEX", SEAT, "IFEQ", "gluww,1795649333")
    async with connect(fresh_redis.url) as locks:
        async with lock_of(locks, "mutex") as held:
            assert fresh_redis.ask(*free) == 0
            held.check()
        assert fresh_redis.ask("SET", SEAT, "gluww,1795649333", "NX") == b"OK"
        assert await lock_of(locks, "mutex").try_acquire() is None
        assert fresh_redis.ask(*free) == 1
        async with lock_of(locks, "mutex").acquire(timeout=10):
            pass


async def test_ours_keeps_theirs_out(
    fresh_redis: RedisServer, foreign: Foreign, kind: Kind
) -> None:
    async with connect(fresh_redis.url) as locks:
        async with lock_of(locks, kind) as held:
            assert not foreign.take(NAME, "gluww")
            assert not foreign.take(NAME, "gluww", 1000)
            assert not foreign.free(NAME, "gluww")
            held.check()
        assert foreign.take(NAME, "gluww")
        assert foreign.free(NAME, "gluww")


async def test_between_two_readers_of_ours(
    fresh_redis: RedisServer, foreign: Foreign
) -> None:
    """The seat is taken from the first reader in to the last one out."""
    async with connect(fresh_redis.url) as locks, connect(fresh_redis.url) as others:
        first = await lock_of(locks, "reader").acquire()
        second = await lock_of(others, "reader").acquire()
        await first.release()
        assert not foreign.take(NAME, "gluww")
        await second.release()
        assert foreign.take(NAME, "gluww")


@pytest.mark.parametrize(
    ("kind", "events", "how"),
    [
        *[(kind, "Kgx", how) for kind in KINDS for how in ("DEL", "PX")],
        ("mutex", "", "DEL"),
        ("mutex", "", "PX"),
        ("reader", "", "DEL"),
    ],
)
async def test_a_waiter_for_a_foreign_holder(
    start_redis: StartRedis,
    request: pytest.FixtureRequest,
    kind: Kind,
    events: str,
    how: str,
) -> None:
    """Woken by the event, else there at the next poll; expiry is known."""
    if events or how == "PX":
        request.getfixturevalue("seldom_polls")
    server = start_redis(config={"notify-keyspace-events": events or '""'})
    foreign = Foreign(server)
    entered: list[Held] = []
    channel = f"__keyspace@0__:{SEAT}"

    def ready() -> bool:
        if not events:
            return bool(server.ask("ZCARD", QUEUE))
        return bool(server.ask("PUBSUB", "NUMSUB", channel)[1])

    async with connect(server.url) as locks, anyio.create_task_group() as group:
        assert foreign.take(NAME, "gluww", 300 if how == "PX" else None)

        async def wait() -> None:
            async with lock_of(locks, kind).acquire(timeout=60) as held:
                entered.append(held)

        group.start_soon(wait)
        await eventually(
            lambda: ready() or bool(entered), "the waiter has asked and listens"
        )
        if how == "DEL":
            foreign.wipe(NAME)
        await eventually(lambda: bool(entered), "entered")
    foreign.close()
    assert server.ask("PUBSUB", "NUMSUB", channel)[1] == 0, "listens no more"


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("reason", ["forced", "stolen"])
async def test_our_seat_is_taken_away(
    fresh_redis: RedisServer, foreign: Foreign, kind: Kind, reason: str
) -> None:
    """Deleted: forced. Overwritten: stolen. The next renewal reports it."""
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(LockLost) as caught:
            async with lock_of(locks, kind) as held:
                if reason == "forced":
                    foreign.wipe(NAME)
                else:
                    foreign.put(NAME, "thief")
                with anyio.fail_after(5):
                    await anyio.sleep_forever()
        assert caught.value.reason == reason
        if reason == "stolen":
            assert fresh_redis.ask("GET", SEAT).startswith(b"thief,")
            assert foreign.free(NAME, "thief")
        async with lock_of(locks, "writer").acquire(timeout=5) as after:
            assert after.fence > held.fence
