"""A lock on a set and a string: its names, its slots, and what may not stand there."""

from __future__ import annotations

import pickle
from uuid import UUID

import anyio
import pytest

from aiorwlock_remote import BadRecord, ConfigurationError, Held, Unsupported, connect
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from aiorwlock_remote.backends.redis.keys import PairKeys
from aiorwlock_remote.core.names import KeyPair, Resource, key_pair
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from tests.recipes.fix_pairs import (
    EXPIRY,
    MODES,
    PARTS,
    QUEUE,
    READ_KEY,
    STATE,
    WRITE_KEY,
    catalog,
    side,
)
from tests.servers.cluster import Cluster
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


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
