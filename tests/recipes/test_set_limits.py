"""What may stand under a mutex set's keys, and what may not be asked of it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import anyio
import hiredis
import pytest

from aiorwlock_remote import (
    BackendError,
    ConfigurationError,
    LockTimeout,
    NotOwner,
    Unsupported,
    connect,
)
from aiorwlock_remote.errors import BadRecord
from tests.backends.redis.connections import eventually
from tests.backends.redis.rights import objects, rules, set_rules, user
from tests.recipes.fix_sets import KEY, QUEUE, STATE, proxies, score, traces
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("key", [KEY, STATE, QUEUE])
async def test_wrong_type_under_a_key(fresh_redis: RedisServer, key: str) -> None:
    """A typed error, and nothing is changed."""
    async with proxies(fresh_redis) as pool:
        fresh_redis.ask("SET", key, "other")
        for attempt in (
            pool.create("a"),
            pool.remove("a"),
            pool.try_acquire(),
            pool.try_acquire("a"),
            pool.acquire(timeout=1).__aenter__(),
        ):
            with pytest.raises(BadRecord, match=r"is not a (sorted set|hash)"):
                await attempt
        assert fresh_redis.ask("DBSIZE") == 1
        assert fresh_redis.ask("GET", key) == b"other"


async def test_scores_from_the_future(fresh_redis: RedisServer) -> None:
    """Held until then, by the published rule; others are to be had."""
    far = str(time.time() + 1e6)
    fresh_redis.ask("ZADD", KEY, far, "far", "+inf", "never", 0, "a")
    async with proxies(fresh_redis) as pool:
        got = [await pool.acquire()]
        assert got[0].name == "a"
        for name in (None, "far", "never"):
            assert await pool.try_acquire(name) is None
            with pytest.raises(LockTimeout):
                await pool.acquire(name, timeout=0.05)
        assert await pool.remove("never")
        assert await pool.create("never")
        got.append(await pool.acquire())
        assert got[1].name == "never"
        for held in got:
            assert await held.release()


async def test_no_score_is_not_a_number(fresh_redis: RedisServer) -> None:
    """The server refuses it, whoever tries; an infinite one stays what it is."""
    for command in (("ZADD", KEY, "nan", "a"), ("ZINCRBY", KEY, "-inf", "a")):
        fresh_redis.ask("ZADD", KEY, "+inf", "a")
        with pytest.raises(hiredis.ReplyError, match=r"not a (valid float|number)"):
            fresh_redis.ask(*command)
        async with proxies(fresh_redis) as pool:
            assert await pool.try_acquire() is None
            assert await pool.try_acquire("a") is None
        assert score(fresh_redis, "a") == math.inf


@pytest.mark.parametrize("name", ["ä,b {c}\n", "0", " ", "x" * 5000, "\udcff"])
async def test_names_are_what_they_are(fresh_redis: RedisServer, name: str) -> None:
    async with proxies(fresh_redis, name) as pool:
        assert [found async for found in pool.list()] == [name]
        for wanted in (name, None):
            async with pool.acquire(wanted) as held:
                assert held.name == name
                await held.extend()
                assert await pool.try_acquire() is None


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("", {}),
        (7, {}),
        ("\ud800", {}),
        (KEY, {"lease": None}),
        (KEY, {"lease": float("nan")}),
        (KEY, {"lease": -1}),
        (KEY, {"lease": 0.1}),
        (KEY, {"lease": "60"}),
        (KEY, {"revalidate_seconds": float("nan")}),
        (KEY, {"revalidate_seconds": 0.5}),
    ],
)
async def test_bad_input(
    fresh_redis: RedisServer,
    what: Any,  # noqa: ANN401 - wrong ones, too
    options: dict[str, Any],
) -> None:
    async with connect(fresh_redis.url) as locks:
        with pytest.raises(ConfigurationError):
            locks.mutex_set(what, **options)


async def test_bad_names_and_calls(fresh_redis: RedisServer) -> None:
    async with proxies(fresh_redis, "a") as pool, connect(fresh_redis.url) as locks:
        for bad in ("", 7, b"a", "\ud800"):
            wrong: Any = bad
            with pytest.raises(ConfigurationError):
                await pool.create(wrong)
            with pytest.raises(ConfigurationError):
                await pool.acquire(wrong)
        with pytest.raises(ConfigurationError):
            await pool.acquire("a", timeout=float("nan"))
        held = await pool.acquire()
        for refused in (held.downgrade, held.try_upgrade):
            with pytest.raises(ConfigurationError):
                await refused()
        with pytest.raises(ConfigurationError):
            held.detach()
        with pytest.raises(ConfigurationError):
            await held.extend(lease=90)
        held.check()
        async with locks.mutex("order", 1) as other:
            assert other.name == "1"
            with pytest.raises(NotOwner):
                await pool.update(other)
            with pytest.raises(NotOwner):
                await pool.release(other, remove=True)
            other.check()
        with pytest.raises(NotOwner):
            await locks.mutex_set("others").release(held)
        assert await held.release()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///locks.db"])
async def test_stores_that_cannot(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    async with connect(url) as locks:
        with pytest.raises(Unsupported, match="proxies"):
            locks.mutex_set(KEY)


async def test_full_memory_keeps_out_but_lets_leave(start_redis: StartRedis) -> None:
    server = start_redis()
    async with proxies(server, "a", "b") as pool:
        held = await pool.acquire()
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(BackendError, match="OOM"):
            await pool.try_acquire()
        await pool.update(held)
        assert await pool.release(held)


# ------------------------------------------------------------------------------
# The rights that the documentation says a mutex set needs: enough, none too many.


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis()


async def everything(server: RedisServer, url: str) -> None:
    """Every kind of step on a set."""
    async with connect(url) as one, connect(url) as two:
        pool, other = (locks.mutex_set(KEY, lease=60) for locks in (one, two))
        await pool.create("a")
        held = await pool.acquire("a")
        await pool.update(held)

        async def wait() -> None:
            async with other.acquire():
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: server.ask("ZCARD", QUEUE) == 1, "waits", 3)
            await pool.release(held)
        assert [name async for name in pool.list()] == ["a"]
        await pool.release(await pool.acquire(), remove=True)
        await pool.remove("a")


async def test_the_documented_rights_are_enough(server: RedisServer) -> None:
    with user(server, rules() + set_rules()) as url:
        await everything(server, url)
        assert traces(server) == []
    assert objects(server) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.parametrize("right", [right for right in set_rules() if right[0] == "+"])
async def test_none_of_them_is_too_many(server: RedisServer, right: str) -> None:
    some = [rule for rule in rules() + set_rules() if rule != right]
    with user(server, some) as url, pytest.raises((BackendError, ExceptionGroup)):
        await everything(server, url)
    assert right[1:].encode() in objects(server)
