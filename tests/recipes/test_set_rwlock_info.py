"""Who holds a lock on a set and a string is shown, and broken on demand."""

from __future__ import annotations

import pytest

from aiorwlock_remote import LockLost, connect
from aiorwlock_remote.core.ticket import holder_of
from tests.recipes.fix_pairs import MODES, READ_KEY, WRITE_KEY, catalog, side, traces
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_foreign_readers_are_listed_and_broken(fresh_redis: RedisServer) -> None:
    """A dead reader of theirs never expires: it is shown, and taken out by name."""
    fresh_redis.ask("SADD", READ_KEY, "ann", b"\xff\xfe", "bob")
    async with connect(fresh_redis.url) as locks, catalog(fresh_redis) as ours:
        lock = locks.set_rwlock("catalog", 7)
        async with ours.reader:
            seen = await lock.info()
            assert len(seen.holders) == 4
            stale = seen.stale()
            assert stale is not None
            assert {h.holder for h in stale.holders} >= {
                holder_of("ann"),
                holder_of("bob"),
            }
            assert all(h.foreign and h.expires_in is None for h in stale.holders)
            assert "ann" not in repr(stale)
            fresh_redis.ask("SREM", READ_KEY, "bob")
            assert await locks.force_release(stale, reason="long dead") == 2
            assert fresh_redis.ask("SCARD", READ_KEY) == 1
        fresh_redis.ask("SET", WRITE_KEY, "cid")
        seen = await lock.info()
        (holder,) = seen.holders
        assert (holder.mode, holder.foreign, seen.locked) == ("write", True, True)
        fresh_redis.ask("SET", WRITE_KEY, "dan")
        assert await locks.force_release(seen, reason="another one") == 0
        seen = await lock.info()
        assert await locks.force_release(seen, reason="dead") == 1
        assert not await lock.locked()
    assert traces(fresh_redis) == []


async def test_ours_are_broken_like_any(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks, catalog(fresh_redis) as lock:
        for mode in MODES:
            held = await side(lock, mode).acquire()
            seen = await locks.set_rwlock("catalog", 7).info()
            assert await locks.force_release(seen, reason="test") == 1
            with pytest.raises(LockLost, match="forced"):
                await held.release()
    assert traces(fresh_redis) == []


async def test_lists_have_them_too(
    fresh_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a lock of the same name; what only looks like one is left out."""
    fresh_redis.ask("SADD", "readlock:order:1", "ann")
    fresh_redis.ask("SET", "writelock:order:2", "bob")
    fresh_redis.ask("HSET", "readlock:order:3", "no", "set")
    for name in ("readlock:", "writelock:order:", "readlock::1", "block:order:5"):
        fresh_redis.ask("SET", name, "another program's")
    async with connect(fresh_redis.url) as locks, locks.mutex("order", 1):
        async with locks.set_rwlock("order", 4).writer:
            listed = [seen.target.label async for seen in locks.list()]
            assert sorted(listed) == ["order/1", "order:1", "order:2", "order:4"]
            assert sorted([d.target.label async for d in locks.list("order")]) == (
                sorted(listed)
            )
            assert [seen async for seen in locks.list("orde")] == []
            stale = [seen async for seen in locks.stale()]
            assert sorted(d.target.label for d in stale) == ["order:1", "order:2"]
            for seen in stale:
                assert await locks.force_release(seen, reason="dead") == 1
        assert [seen async for seen in locks.stale()] == []
    assert fresh_redis.ask("EXISTS", "readlock:order:1", "writelock:order:2") == 0
    assert "order:3" in caplog.text or "WRONGTYPE" in caplog.text
