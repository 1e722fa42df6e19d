"""Keys of ours that hold something else: said so, and left alone."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import BadRecord, Locks, connect
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio

SEAT = "mutex_locks/damaged,1"
STATE = f"{{{SEAT}}}.state"
READERS = f"{{{SEAT}}}.readers"
QUEUE = f"{{{SEAT}}}.queue"


def whole(server: RedisServer) -> dict[bytes, bytes]:
    """Everything in the database."""
    return {name: server.ask("DUMP", name) for name in server.ask("KEYS", "*")}


async def refused(locks: Locks) -> None:
    """Every way in says the record is bad."""
    rwlock = locks.rwlock("damaged", 1)
    for side in (locks.mutex("damaged", 1), rwlock.writer, rwlock.reader):
        with anyio.fail_after(5), pytest.raises(BadRecord):
            await side.acquire()
        with pytest.raises(BadRecord):
            await side.try_acquire()
    with pytest.raises(BadRecord):
        await rwlock.reader.info()


@pytest.mark.parametrize(
    "command",
    [
        ("LPUSH", SEAT, "x"),
        ("SET", STATE, "x"),
        ("SET", READERS, "x"),
        ("SADD", QUEUE, "x"),
        ("HSET", STATE, "v", "2"),
        ("HSET", STATE, "v", "1", "last", "many"),
    ],
    ids=" ".join,
)
async def test_a_foreign_thing_under_our_key(
    fresh_redis: RedisServer, command: tuple[str, ...]
) -> None:
    async with connect(fresh_redis.url) as locks:
        fresh_redis.ask(*command)
        before = whole(fresh_redis)
        await refused(locks)
        assert whole(fresh_redis) == before
        fresh_redis.ask("DEL", command[1])
        async with locks.mutex("damaged", 1).acquire(timeout=5):
            pass


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("key", [SEAT, STATE, READERS, QUEUE])
async def test_a_key_changed_while_it_is_used(
    fresh_redis: RedisServer, key: str
) -> None:
    """While readers hold and a writer waits, so that all four keys are in use."""
    async with connect(fresh_redis.url) as locks, connect(fresh_redis.url) as others:
        held = await locks.rwlock("damaged", 1).reader.acquire()
        errors: list[Exception] = []

        async def wait() -> None:
            with pytest.raises(BadRecord) as caught:
                await others.rwlock("damaged", 1).writer.acquire(timeout=20)
            errors.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            while not fresh_redis.ask("EXISTS", QUEUE):  # noqa: ASYNC110 - no event
                await anyio.sleep(0.005)
            fresh_redis.ask_all(("DEL", key), ("LPUSH", key, "x"))
            with pytest.raises(BadRecord):
                await held.release()
        assert len(errors) == 1
        assert fresh_redis.ask("LRANGE", key, 0, -1) == [b"x"]
