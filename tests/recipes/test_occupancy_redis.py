"""Occupying objects in Redis: the published keys, and other programs."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread
import pytest
import redis

from aiorwlock_remote import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    Closed,
    ConfigurationError,
    LockBusy,
    LockLost,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.rights import objects, occupancy_rules, rules, user
from tests.recipes.occupied_places import BOOK, RedisPlace
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartRedis
from tests.servers.pair import Pair, too_few
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


PENDING, USING = "pending:book:42", "using:book:42"


async def test_the_keys_are_named_as_users_say(fresh_redis: RedisServer) -> None:
    names = {"pending": "want %s", "using": "%s.in-use"}
    async with connect(fresh_redis.url, prefix="eu:") as locks:
        async with locks.occupancy().occupy(("book", 42)):
            assert fresh_redis.ask("KEYS", "*") == [b"eu:using:book:42"]
        await locks.occupancy().store.write("book:42", "me")
        found = set(fresh_redis.ask("KEYS", "*"))
        assert found == {b"eu:pending:book:42", b"{eu:pending:book:42}.since"}
        fresh_redis.ask("FLUSHALL")
        async with locks.occupancy(**names).occupy(("{a}", "b:c")):  # type: ignore[arg-type]
            assert fresh_redis.ask("KEYS", "*") == [b"eu:{a}:b:c.in-use"]
        assert locks.occupancy(pending="p%s") is locks.occupancy(pending="p%s")


@pytest.mark.parametrize(
    "names",
    [
        {"pending": "pending"},
        {"using": "%s%s"},
        {"using": b"%s"},
        {"using": None},
        {"pending": "a%s", "using": "a%s"},
        {"pending": "\ud800%s"},
        {"pending_age": 0.5},
        {"pending_age": None},
        {"using_age": float("nan")},
        {"using_age": "1"},
    ],
)
async def test_names_that_cannot_be_used(
    fresh_redis: RedisServer, names: dict[str, object]
) -> None:
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(ConfigurationError):
            locks.occupancy(**names)  # type: ignore[arg-type]
        for thing in (("book", ""), ("book", 1.5), "book", None, ("a\n", 1)):
            with pytest.raises(ConfigurationError):
                _ = locks.occupancy().occupy(thing)


async def test_another_store_cannot_hold_any() -> None:
    async with connect("memory://") as locks:
        with pytest.raises(Unsupported):
            locks.occupancy()


@pytest.mark.parametrize("key", [PENDING, USING, f"{{{PENDING}}}.since"])
async def test_another_type_under_a_key(fresh_redis: RedisServer, key: str) -> None:
    fresh_redis.ask("LPUSH", key, "x")
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(BadRecord):
            await locks.occupancy().occupy(BOOK)
        assert fresh_redis.ask("KEYS", "*") == [key.encode()]


async def test_another_programs_end_counts_from_when_it_was_seen(
    fresh_redis: RedisServer,
) -> None:
    async with connect(fresh_redis.url) as locks:
        fresh_redis.ask("SET", USING, "joe")
        assert await locks.occupancy(using_age=None).try_occupy(BOOK) is None
        assert await locks.occupancy().holders(BOOK) == ("joe",)
        assert fresh_redis.ask("PTTL", USING) == -1
        assert await locks.occupancy(using_age=60).try_occupy(BOOK) is None
        assert 50_000 < fresh_redis.ask("PTTL", USING) <= 60_000
        assert await locks.occupancy(using_age=600).try_occupy(BOOK) is None
        assert fresh_redis.ask("PTTL", USING) <= 60_000


async def test_ours_ends_by_itself(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks:
        async with locks.occupancy(using_age=60).occupy(BOOK) as occupied:
            fresh_redis.ask("PEXPIRE", USING, 30_000)
            await occupied.extend()
            assert 50_000 < fresh_redis.ask("PTTL", USING) <= 60_000
        async with locks.occupancy(using_age=None).occupy(BOOK) as occupied:
            await occupied.extend()
            assert fresh_redis.ask("PTTL", USING) == -1


async def test_who_replaced_us_stays(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks:
        occupied = await locks.occupancy().occupy(BOOK)
        fresh_redis.ask("SET", USING, "joe")
        with pytest.raises(LockLost):
            await occupied.extend()
        with pytest.raises(LockLost):
            await occupied.release()
        assert fresh_redis.ask("GET", USING) == b"joe"


class Published:
    """A program in plain redis-py, as published, with the two repairs."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)

    def occupy(self, me: str) -> bool:
        while True:
            self._client.sadd(PENDING, me)
            others = self._client.smembers(PENDING)
            if others != {me}:
                self._client.srem(PENDING, me)
                time.sleep(0.001 + hash(time.monotonic()) % 10 / 1000)
                continue
            if self._client.get(USING) is not None:
                self._client.srem(PENDING, me)
                return False
            using = self._client.set(USING, me, nx=True)
            self._client.srem(PENDING, me)
            return bool(using)

    def leave(self) -> None:
        self._client.delete(USING)

    def close(self) -> None:
        self._client.close()


async def test_a_published_program_takes_part(fresh_redis: RedisServer) -> None:
    inside = 0
    turns = {"ours": 0, "theirs": 0}

    def enter(name: str) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1, "two use it"
        turns[name] += 1

    def theirs() -> None:
        nonlocal inside
        other = Published(fresh_redis.url)
        for number in range(4000):
            if turns["theirs"] >= 20:
                break
            if other.occupy(f"joe{number}"):
                enter("theirs")
                time.sleep(0.001)
                inside -= 1
                other.leave()
            time.sleep(0.002)
        other.close()

    async def ours() -> None:
        nonlocal inside
        async with connect(fresh_redis.url) as locks:
            while turns["ours"] < 20:
                occupied = await locks.occupancy().try_occupy(BOOK, 60)
                if occupied is not None:
                    async with occupied:
                        enter("ours")
                        await anyio.sleep(0.001)
                        inside -= 1
                await anyio.sleep(0.002)

    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            group.start_soon(ours)
            await anyio.to_thread.run_sync(theirs)
    assert turns == {"ours": 20, "theirs": 20}
    assert RedisPlace(fresh_redis.url).records() == ([], [])


async def test_closing_gives_everything_back(fresh_redis: RedisServer) -> None:
    async with connect(fresh_redis.url) as locks:
        some = locks.occupancy()
        held = [await some.occupy(("book", number)) for number in range(3)]
    assert fresh_redis.ask("KEYS", "*") == []
    assert not await held[0].release()
    with pytest.raises(Closed):
        await some.occupy(BOOK)


# ------------------------------------------------------------------------------
# Occupying objects in Redis: servers that fail, a cluster, the documented rights.


@pytest.mark.slow
async def test_a_server_that_is_gone(start_redis: StartRedis) -> None:
    server = start_redis()
    async with connect(server.url, connect_timeout=1) as locks:
        occupied = await locks.occupancy().occupy(("book", 1))
        server.kill()
        with pytest.raises(BackendUnavailable):
            await locks.occupancy().occupy(BOOK)
        with pytest.raises(BackendUnavailable):
            await occupied.release()


@pytest.mark.slow
async def test_a_server_that_is_full(start_redis: StartRedis) -> None:
    """Nobody gets in, and whoever is in gets out."""
    server = start_redis(config={"maxmemory-policy": "noeviction"})
    async with connect(server.url) as locks:
        occupied = await locks.occupancy().occupy(("book", 1))
        server.ask("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(BackendError, match="OOM"):
            await locks.occupancy().occupy(BOOK)
        await occupied.extend()
        assert await occupied.release()
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert server.ask("KEYS", "*") == []


@pytest.mark.slow
async def test_too_few_replicas(pair: Pair) -> None:
    async with connect(pair.url, min_replicas=1) as locks:
        async with locks.occupancy().occupy(BOOK):
            assert pair.replica.ask("EXISTS", "using:book:42") == 1
        pair.replica.pause()
        await too_few(locks.occupancy().occupy(BOOK))
        assert pair.primary.ask("KEYS", "*") == []


@pytest.mark.slow
async def test_in_a_cluster(redis_cluster: Cluster) -> None:
    async with connect(redis_cluster.url) as locks:
        with pytest.raises(ConfigurationError, match="slots"):
            _ = locks.occupancy().occupy(BOOK)
        tagged = locks.occupancy(pending="pending:{%s}", using="using:{%s}")
        for number in range(5):
            async with tagged.occupy(("book", number)):
                with pytest.raises(LockBusy):
                    await tagged.occupy(("book", number))
        async with locks.occupancy().occupy(("{book}", 42)):
            pass
        keys = list(tagged.store._keys("book:7"))  # type: ignore[attr-defined]
        assert len({slot_of(key) for key in keys}) == 1


async def everything(url: str, number: int = 0) -> None:
    """Every kind of step."""
    async with connect(url) as locks:
        books, book = locks.occupancy(pending_age=1), ("book", number)
        await books.store.write(f"book:{number}", "somebody")
        await anyio.sleep(1.2)
        async with books.occupy(book) as occupied:
            await occupied.extend()
            assert await books.try_occupy(book) is None
        async with locks.occupancy(using_age=None).occupy(("book", number)):
            pass


@pytest.mark.slow
async def test_the_documented_rights_are_enough(start_redis: StartRedis) -> None:
    server = start_redis()
    with user(server, rules() + occupancy_rules()) as url:
        await everything(url)
    assert objects(server) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.slow
@pytest.mark.only_on("asyncio", "the server does not see the loop")
async def test_none_of_them_is_too_many(start_redis: StartRedis) -> None:
    server = start_redis()
    rights = [right for right in occupancy_rules() if right[0] == "+"]
    async with anyio.create_task_group() as group:
        for number, right in enumerate(rights):
            some = [rule for rule in rules() + occupancy_rules() if rule != right]
            name = f"locks{number}"
            server.ask("ACL", "SETUSER", name, *some)
            url = f"redis://{name}:password@127.0.0.1:{server.port}/0"
            group.start_soon(_is_refused, url, number)
    assert {right[1:].encode() for right in rights} <= objects(server)


async def _is_refused(url: str, number: int) -> None:
    with pytest.raises(Unsupported):
        await everything(url, number)
