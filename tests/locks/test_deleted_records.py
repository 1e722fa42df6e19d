"""A record that was deleted, or that the store forgot, is no lease that ran out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aiorwlock_remote import LockLost, connect
from aiorwlock_remote.backends.memory import named_database
from tests.servers.plain import PlainRedis
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url_and_delete(
    request: pytest.FixtureRequest, tmp_path: Path, fresh_redis: RedisServer
) -> tuple[str, Callable[[], object]]:
    """A store, and what deletes all that is there."""

    def clear() -> None:
        named_database("deleted").records.clear()
        named_database("deleted").seats.clear()

    def delete() -> None:
        with closing(sqlite3.connect(tmp_path / "locks", isolation_level=None)) as db:
            db.execute("DELETE FROM doormans")
            db.execute("DELETE FROM mutex_locks")

    stores: dict[str, tuple[str, Callable[[], object]]] = {
        "memory": ("memory://deleted", clear),
        "sqlite": (f"sqlite:///{tmp_path}/locks", delete),
        "redis": (fresh_redis.url, lambda: fresh_redis.ask("FLUSHALL")),
    }
    return stores[request.param]


async def test_a_release_after_a_deletion_reports_forced(
    url_and_delete: tuple[str, Callable[[], object]],
) -> None:
    url, delete = url_and_delete
    async with connect(url) as locks:
        released = await locks.mutex("order", 1).acquire()
        extended = await locks.rwlock("order", 2).reader.acquire()
        moved = await locks.mutex("order", 3).acquire()
        delete()
        for use in (released.release, extended.extend, moved.downgrade):
            with pytest.raises(LockLost, match="forced"):
                await use()


@pytest.mark.parametrize("theirs", [False, True])
async def test_the_key_of_the_readers(
    fresh_redis: RedisServer, *, theirs: bool
) -> None:
    """The first reader that learns of it deletes our ``readers`` from the mutex record.

    Not a foreign program's, which has another time.
    """
    plain = PlainRedis(fresh_redis.url, "")
    url = fresh_redis.url
    async with connect(url) as locks, connect(url) as others, connect(url) as third:
        first, second = [
            await one.rwlock("order", 1).reader.acquire() for one in (locks, others)
        ]
        writer = third.rwlock("order", 1).writer
        fresh_redis.ask("DEL", "{mutex_locks/order,1}.readers")
        if theirs:
            fresh_redis.ask("SET", "mutex_locks/order,1", "readers,1000000000")
        assert await writer.try_acquire() is None
        with pytest.raises(LockLost):
            await first.extend()
        assert plain.read(("order", 1)) == ("readers" if theirs else None)
        with pytest.raises(LockLost):
            await second.extend()
        held = await writer.try_acquire()
        assert (held is None) == theirs
        if held is not None:
            await held.release()
