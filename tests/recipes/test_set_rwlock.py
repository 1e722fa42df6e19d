"""A readers-writer lock on a set and a string: taking, sharing, waiting, names."""

from __future__ import annotations

import pickle
import time
from uuid import UUID

import anyio
import pytest

from aiorwlock_remote import (
    BadRecord,
    ConfigurationError,
    Held,
    LockLost,
    LockTimeout,
    RWLock,
    Unsupported,
    WouldDeadlock,
    connect,
)
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from aiorwlock_remote.backends.redis.keys import PairKeys
from aiorwlock_remote.core.names import KeyPair, Resource, key_pair
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from tests.backends.redis.connections import eventually
from tests.recipes.fix_pairs import (
    EXPIRY,
    MODES,
    PARTS,
    QUEUE,
    READ_KEY,
    STATE,
    WRITE_KEY,
    catalog,
    queued,
    side,
    traces,
)
from tests.recipes.fix_sets import requests
from tests.servers.cluster import Cluster
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_readers_share_a_writer_is_alone(fresh_redis: RedisServer) -> None:
    async with (
        catalog(fresh_redis) as one,
        catalog(fresh_redis) as two,
        catalog(fresh_redis) as three,
    ):
        async with one.reader as first, two.reader_lock as second:
            assert first.fence == second.fence, "one phase"
            assert (first.resource, first.name, first.mode) == (
                "catalog:7",
                "7",
                "read",
            )
            assert fresh_redis.ask("SCARD", READ_KEY) == 2
            assert fresh_redis.ask("ZCARD", EXPIRY) == 2
            assert await three.writer.try_acquire() is None
            with pytest.raises(LockTimeout) as caught:
                await three.writer.acquire(timeout=0.05)
            assert caught.value.holders
            with pytest.raises(WouldDeadlock):
                await one.writer.acquire()
        assert fresh_redis.ask("EXISTS", READ_KEY, EXPIRY) == 0
        async with one.writer_lock.acquire(timeout=1, reason="rebuild") as held:
            ticket = fresh_redis.ask("GET", WRITE_KEY).decode()
            assert len(ticket) == 32
            assert fresh_redis.ask("PTTL", WRITE_KEY) > 25_000
            assert held.fence > first.fence
            for mode in MODES:
                assert await side(two, mode).try_acquire() is None
            (holder,) = (await two.info()).holders
            assert (holder.mode, holder.reason) == ("write", "rebuild")
            assert holder.holder == held.holder
            assert ticket not in repr(holder)
        assert not await held.release()
    assert traces(fresh_redis) == []


async def test_identifiers_are_fresh(fresh_redis: RedisServer) -> None:
    seen: set[bytes] = set()
    async with catalog(fresh_redis) as lock:
        for _ in range(20):
            async with lock.writer:
                seen.add(fresh_redis.ask("GET", WRITE_KEY))
            async with lock.reader:
                seen |= set(fresh_redis.ask("SMEMBERS", READ_KEY))
    assert len(seen) == 40


async def test_fences_rise(fresh_redis: RedisServer) -> None:
    """With each write grant and each new read phase, also past a lost clock."""
    async with catalog(fresh_redis) as lock:
        fences: list[int] = []
        for mode in (*MODES, "read", "write", "write"):
            async with side(lock, mode) as held:
                fences.append(held.fence)
        assert fences == sorted(set(fences))
        ahead = int((time.time() + 60) * 1e6)
        fresh_redis.ask("HSET", STATE, "last", ahead)
        async with lock.reader as held:
            assert held.fence == ahead + 1
        fresh_redis.ask("FLUSHALL")
        async with lock.reader as held:
            assert held.fence < ahead, "nobody remembers"


@pytest.mark.usefixtures("seldom_polls")
@pytest.mark.parametrize("waits", MODES)
@pytest.mark.parametrize("holds", ["write", "read"])
async def test_waiters_of_a_pair_are_woken(
    fresh_redis: RedisServer, holds: str, waits: str
) -> None:
    if (holds, waits) == ("read", "read"):
        waits = "write"
    async with catalog(fresh_redis) as one, catalog(fresh_redis) as two:
        got: list[Held] = []

        async def wait() -> None:
            async with side(two, waits).acquire(timeout=30) as held:
                got.append(held)

        held = await side(one, holds).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await queued(fresh_redis, 1)
            await held.release()
        assert got[0].fence > held.fence
    assert traces(fresh_redis) == []


async def test_readers_first_then_writers_in_order(fresh_redis: RedisServer) -> None:
    """The published rule: readers enter past a writer that waits."""
    order: list[str] = []
    async with (
        catalog(fresh_redis) as one,
        catalog(fresh_redis) as two,
        catalog(fresh_redis) as three,
    ):

        async def write(lock: RWLock, who: str) -> None:
            async with lock.writer:
                order.append(who)

        first = await one.reader.acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(write, two, "first")
            await queued(fresh_redis, 1)
            group.start_soon(write, three, "second")
            await queued(fresh_redis, 2)
            second = await three.reader.acquire(timeout=0)
            await first.release()
            assert order == []
            await second.release()
        assert order == ["first", "second"]


async def test_the_other_policies_are_among_ours(fresh_redis: RedisServer) -> None:
    """``fair``: a reader does not pass a writer that waits."""
    async with (
        catalog(fresh_redis, policy="fair") as one,
        catalog(fresh_redis, policy="fair") as two,
        catalog(fresh_redis, policy="fair") as three,
        one.reader,
        anyio.create_task_group() as group,
    ):
        group.start_soon(two.writer.acquire().__aenter__)
        await queued(fresh_redis, 1)
        assert await three.reader.try_acquire() is None
        async with three.reader.acquire(timeout=0, policy="reader"):
            pass
        group.cancel_scope.cancel()
    await eventually(lambda: traces(fresh_redis) == [], "nothing stays")


async def test_connects_policy_is_not_this_locks(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url, policy="writer") as locks:
        lock = locks.set_rwlock("catalog", 7)
        assert lock.reader._request.policy == "reader"
        lock = locks.set_rwlock("catalog", 7, policy="writer")
        assert lock.reader._request.policy == "writer"


@pytest.mark.slow
@pytest.mark.only_on("asyncio", "the server counts")
async def test_waiting_costs_about_one_request_a_second(
    fresh_redis: RedisServer,
) -> None:
    """20 tasks of one process, for each side."""
    async with catalog(fresh_redis) as holder, catalog(fresh_redis) as lock:
        async with holder.writer:
            for mode in MODES:
                async with anyio.create_task_group() as group:
                    for _ in range(20):
                        group.start_soon(side(lock, mode).acquire().__aenter__)
                    await queued(fresh_redis, 1)
                    await anyio.sleep(0.2)  # what came before must not count
                    before, began = requests(fresh_redis), anyio.current_time()
                    await anyio.sleep(3)
                    sent = requests(fresh_redis) - before
                    took = anyio.current_time() - began
                    assert sent <= took + 1  # the keeper's
                    group.cancel_scope.cancel()
                await queued(fresh_redis, 0)
        async with holder.writer.acquire(timeout=0):
            pass


async def test_moves_and_passing_on(fresh_redis: RedisServer) -> None:
    """Without a gap: the keys change in one step."""
    async with connect(fresh_redis.url) as locks, catalog(fresh_redis) as other:
        lock = locks.set_rwlock("catalog", 7)
        held = await lock.writer.acquire()
        held = await held.downgrade()
        assert fresh_redis.ask("EXISTS", READ_KEY, WRITE_KEY) == 1
        theirs = await other.reader.acquire()
        assert await held.try_upgrade() is None, "another reader is there"
        await theirs.release()
        fresh_redis.ask("SADD", READ_KEY, "joe")
        assert await held.try_upgrade() is None, "a foreign one is there"
        fresh_redis.ask("SREM", READ_KEY, "joe")
        held = await held.upgrade(timeout=2)
        assert fresh_redis.ask("EXISTS", READ_KEY) == 0
        await held.extend(lease=90)
        assert fresh_redis.ask("PTTL", WRITE_KEY) > 80_000
        given = held.detach()
        adopted = await locks.adopt(given)
        assert adopted.resource == "catalog:7"
        assert await adopted.release()
    assert traces(fresh_redis) == []


async def test_with_other_locks_at_once(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks:
        both = locks.set_rwlock("catalog", 7), locks.rwlock("catalog", 7)
        async with locks.multi(both[0].writer, both[1].writer, locks.mutex("a", 1)):
            assert fresh_redis.ask("EXISTS", WRITE_KEY, "mutex_locks/catalog,7") == 2


# -------- Who holds a lock on a set and a string is shown, and broken on demand


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


# ------------------------------------------------------------------------------
# A lock on a set and a string: its names, its slots, and what may not stand there.


@pytest.mark.parametrize(
    ("datatype", "number", "key"),
    [
        ("foobar", 123, "readlock:foobar:123"),
        ("a:b", "c", "readlock:a:b:c"),
        ("a", "b:c", "readlock:a:b:c"),
        ("{tag}x", "1", "readlock:{tag}x:1"),
        ("100%/,", "ä ö", "readlock:100%/,:ä ö"),
        ("u", UUID(int=1), f"readlock:u:{UUID(int=1)}"),
        ("t" * 3_000, "i" * 60_000, f"readlock:{'t' * 3_000}:{'i' * 60_000}"),
    ],
)
@pytest.mark.usefixtures("seldom_polls")
async def test_names_stand_as_they_are(
    fresh_redis: RedisServer, datatype: str, number: int | str | UUID, key: str
) -> None:
    async with (
        connect(fresh_redis.url, prefix="p:") as locks,
        connect(fresh_redis.url, prefix="p:") as others,
    ):
        async with locks.set_rwlock(datatype, number).reader:
            assert fresh_redis.ask("EXISTS", f"p:{key}") == 1
        async with (
            anyio.create_task_group() as group,
            locks.set_rwlock(datatype, number).writer as held,
        ):
            assert fresh_redis.ask("EXISTS", f"p:write{key[4:]}") == 1
            waiting = others.set_rwlock(datatype, number).writer
            group.start_soon(_take, waiting.acquire(timeout=30))
            with anyio.fail_after(10):
                while not (await waiting.info()).queue:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        assert held.resource == key[len("readlock:") :]


async def _take(acquisition: object) -> None:
    async with acquisition:  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize(
    ("datatype", "number", "why"),
    [
        ("", 1, "empty"),
        ("a", "", "empty"),
        (b"a", 1, "str"),
        ("a", 1.5, "int, str or UUID"),
        ("a", True, "int, str or UUID"),
        ("a\n", 1, "control"),
        ("a", "\x7f", "control"),
        ("a", "\x9f", "control"),
        ("\ud800", 1, "Unicode"),
    ],
)
def test_names_that_cannot_be_used(datatype: str, number: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        key_pair(datatype, number)


def test_one_name_is_one_lock() -> None:
    same = {key_pair("a:b", "c"), key_pair("a", "b:c")}
    assert len(same) == 1
    again = pickle.loads(pickle.dumps(key_pair("a", "b:c")))  # noqa: S301 - our own
    assert again in same
    assert key_pair("x", 42) == key_pair("x", "42")
    assert KeyPair("x", "1") != Resource("x", "1")


@pytest.mark.parametrize(
    "names", [("{t}", "1"), ("a", "{t}"), ("{t", "}"), ("}", "{t}")]
)
def test_a_tag_brings_all_keys_into_one_slot(names: tuple[str, str]) -> None:
    for cluster in (False, True):
        keys = PairKeys(key_pair(*names), cluster=cluster, prefix="p:")
        some = [key for key in keys.args[1:-1] if isinstance(key, bytes)]
        assert len(some) == 5 + cluster
        assert len({slot_of(key) for key in some}) == 1


@pytest.mark.parametrize("names", [("a", "1"), ("x", "{}{t}"), ("}{", "1")])
def test_without_a_tag_there_is_no_place_in_a_cluster(names: tuple[str, str]) -> None:
    keys = PairKeys(key_pair(*names))
    beside = tuple(f"{{readlock:{':'.join(names)}}}.{p}" for p in PARTS)
    assert keys.args[2:5] == tuple(key.encode() for key in beside)
    with pytest.raises(ConfigurationError, match=r"slots.*\{tag\}"):
        PairKeys(key_pair(*names), cluster=True)


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_polls")
async def test_in_a_cluster(redis_cluster: Cluster) -> None:
    async with (
        connect(redis_cluster.url) as locks,
        connect(redis_cluster.url) as others,
    ):
        with pytest.raises(ConfigurationError, match="slots"):
            locks.set_rwlock("catalog", 7)
        ours, theirs = (some.set_rwlock("{catalog}", 7) for some in (locks, others))
        got: list[Held] = []

        async def wait(lock: ReaderLock | WriterLock) -> None:
            async with lock.acquire(timeout=30) as held:
                got.append(held)
                assert held.valid

        for waits in MODES:
            async with (
                anyio.create_task_group() as group,
                ours.writer as held,
            ):
                group.start_soon(wait, side(theirs, waits))
                with anyio.fail_after(10):
                    while not (await ours.info()).queue:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                await held.extend()
            assert got.pop()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{path}/x.db"])
async def test_only_redis_has_it(url: str, tmp_path: object) -> None:
    async with connect(url.format(path=tmp_path)) as locks:
        with pytest.raises(Unsupported, match="readlock:catalog:7"):
            locks.set_rwlock("catalog", 7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("key", "put"),
    [
        (READ_KEY, ("SET", READ_KEY, "x")),
        (READ_KEY, ("ZADD", READ_KEY, 1, "x")),
        (WRITE_KEY, ("SADD", WRITE_KEY, "x")),
        (WRITE_KEY, ("HSET", WRITE_KEY, "x", "y")),
        (STATE, ("SET", STATE, "x")),
        (QUEUE, ("SET", QUEUE, "x")),
    ],
)
async def test_wrong_types(
    fresh_redis: RedisServer, mode: str, key: str, put: tuple[str, ...]
) -> None:
    fresh_redis.ask(*put)
    before = fresh_redis.ask("DUMP", key)
    async with catalog(fresh_redis) as lock:
        for waits in (0, 2):
            with pytest.raises(BadRecord):
                await side(lock, mode).acquire(timeout=waits)
        with pytest.raises(BadRecord):
            await lock.info()
    assert fresh_redis.ask("DUMP", key) == before
    assert fresh_redis.ask("KEYS", "*") == [key.encode()]


async def test_a_wrong_type_of_the_expiry(fresh_redis: RedisServer) -> None:
    fresh_redis.ask("SET", EXPIRY, "x")
    async with catalog(fresh_redis) as lock:
        with pytest.raises(BadRecord):
            await lock.reader.try_acquire()
    assert fresh_redis.ask("KEYS", "*") == [EXPIRY.encode()]


async def test_options_are_those_of_every_lock(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(ConfigurationError, match="lease"):
            locks.set_rwlock("catalog", 7, lease=0.1)
        with pytest.raises(ConfigurationError, match="unknown option"):
            locks.set_rwlock("catalog", 7, speed=1)  # type: ignore[call-arg]
        async with locks.set_rwlock("catalog", 7, lease=None).writer as held:
            assert held.expires_in is None
            assert fresh_redis.ask("PTTL", WRITE_KEY) == -1
