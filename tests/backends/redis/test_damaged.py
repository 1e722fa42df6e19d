"""A state that says what cannot be: refused, and left as it is."""

from __future__ import annotations

import time

import pytest

from aiorwlock_remote import BadRecord, connect
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio

STATE = "{mutex_locks/damaged,1}.state"
DAMAGED = [
    ("last", "x"),
    ("last", str(2**53)),  # the next fence would not be a greater one
    ("barred_until", "1e999"),
    ("upgrader", "1"),
    ("v", "2"),
]


def damage(server: RedisServer, field: str, text: str) -> list[bytes]:
    """Write a state with one bad field; the state."""
    keep = int(time.time() * 1000) + 10**7
    fields = {"v": 1, "last": 5, "keep": keep} | {field: text}
    server.ask("HSET", STATE, *(word for pair in fields.items() for word in pair))
    return sorted(server.ask("HGETALL", STATE))


@pytest.mark.parametrize(("field", "text"), DAMAGED)
async def test_nothing_is_granted_on_it(
    fresh_redis: RedisServer, field: str, text: str
) -> None:
    before = damage(fresh_redis, field, text)
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(BadRecord):
            await locks.mutex("damaged", 1).acquire(timeout=1)
    assert sorted(fresh_redis.ask("HGETALL", STATE)) == before
    assert fresh_redis.ask("EXISTS", "mutex_locks/damaged,1") == 0


@pytest.mark.parametrize(
    ("field", "text"), [("last", "x"), ("endings", "zzz"), ("turns", "1.5"), ("v", "2")]
)
async def test_it_is_not_shown(fresh_redis: RedisServer, field: str, text: str) -> None:
    damage(fresh_redis, field, text)
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(BadRecord):
            await locks.mutex("damaged", 1).info()
        assert [seen async for seen in locks.list()] == []
