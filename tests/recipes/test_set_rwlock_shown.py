"""Who holds a lock on a set and a string is shown, and broken on demand."""

from __future__ import annotations

import pytest

from aiorwlock_remote import LockLost, connect
from aiorwlock_remote.core.ticket import holder_of
from tests.recipes.fix_pairs import (
    MODES,
    READ_KEY,
    WRITE_KEY,
    catalog,
    side,
    traces,
)
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_they_are_seen_and_broken(fresh_redis: RedisServer) -> None:
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
