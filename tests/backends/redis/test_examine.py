"""What `rwlock doctor` says of real servers with real settings."""

from __future__ import annotations

import anyio.to_thread
import pytest

from aiorwlock_remote import AcquireUncertain, BackendError, LockTimeout, connect
from aiorwlock_remote.cli.main import main
from aiorwlock_remote.ports import Finding
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def findings(url: str) -> dict[str, Finding]:
    async with connect(url) as locks:
        return {finding.name: finding async for finding in locks.examine()}


async def test_a_plain_server(start_redis: StartRedis) -> None:
    server = start_redis()
    is_valkey = b"valkey_version" in server.ask("INFO", "server")
    found = await findings(server.url)
    assert list(found) == [
        *("latency", "waiting", "version", "role", "clock"),
        *("persistence", "memory", "buffers", "events", "rights"),
    ]
    assert found["version"].value.startswith("Valkey " if is_valkey else "Redis ")
    assert found["role"].value == "primary"
    assert found["clock"].rating == "good"
    assert found["persistence"].value == "no AOF"
    assert found["persistence"].rating == "note"
    assert found["memory"].value == "no limit"
    assert found["events"].value == "off"
    assert found["rights"].rating == "good"
    assert "bad" not in {finding.rating for finding in found.values()}


async def test_persistence_and_events(start_redis: StartRedis) -> None:
    config = {
        "appendonly": "yes",
        "appendfsync": "always",
        "notify-keyspace-events": "Kgx",
    }
    found = await findings(start_redis(config=config).url)
    assert found["persistence"].value == "AOF, each write"
    assert found["events"].value == "gxK"
    assert "at once" in found["events"].meaning


async def test_aof_that_may_lose_a_second(start_redis: StartRedis) -> None:
    found = await findings(start_redis(config={"appendonly": "yes"}).url)
    assert "the last second" in found["persistence"].meaning


async def test_eviction_is_bad(start_redis: StartRedis) -> None:
    limits = {"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}
    found = await findings(start_redis(config=limits).url)
    assert found["memory"].rating == "bad"
    assert found["memory"].value == "50.00M, allkeys-lru"


async def test_a_limit_without_eviction_is_fine(start_redis: StartRedis) -> None:
    found = await findings(start_redis(config={"maxmemory": "50mb"}).url)
    assert (found["memory"].rating, found["memory"].value) == (
        *("good", "50.00M, noeviction"),
    )


LIMIT = "client-output-buffer-limit"


@pytest.mark.parametrize(
    ("limit", "rating"),
    [
        ("pubsub 32kb 0 0", "bad"),
        ("pubsub 0 32kb 0", "bad"),  # a soft limit for no time is a hard one
        ("pubsub 1mb 32kb 60", "good"),
        ("pubsub 0 0 0", "good"),
    ],
)
async def test_buffers_that_are_too_small(
    redis_server: RedisServer, limit: str, rating: str
) -> None:
    _, before = redis_server.ask("CONFIG", "GET", LIMIT)
    redis_server.ask("CONFIG", "SET", LIMIT, limit)
    try:
        assert (await findings(redis_server.url))["buffers"].rating == rating
    finally:
        redis_server.ask("CONFIG", "SET", LIMIT, before)


@pytest.mark.no_uvloop("it is about the server")
async def test_the_least_buffer_that_grants(redis_server: RedisServer) -> None:
    """What the page says: with 16 kB nothing is granted, with 32 kB a lock is."""
    _, before = redis_server.ask("CONFIG", "GET", LIMIT)
    try:
        for limit, is_enough in ((16, False), (32, True)):
            redis_server.ask("CONFIG", "SET", LIMIT, f"pubsub {limit}kb 0 0")
            async with connect(redis_server.url) as locks:
                lock = locks.mutex("order", limit, lease=1)
                try:
                    async with lock.acquire(timeout=2):
                        assert is_enough
                except (AcquireUncertain, BackendError, LockTimeout):
                    assert not is_enough
    finally:
        redis_server.ask("CONFIG", "SET", LIMIT, before)


async def test_replicas_are_reported(start_redis: StartRedis) -> None:
    primary, replica = start_redis(), start_redis()
    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    while b"connected_slaves:1" not in primary.ask("INFO", "replication"):
        pass
    found = await findings(primary.url)
    assert found["role"].value == "primary of 1 replicas"
    assert found["role"].rating == "note"


async def test_a_user_who_may_not_ask(start_redis: StartRedis) -> None:
    """Every refusal is a finding; none of them ends the examination."""
    server = start_redis(
        users=["bob on >secret ~* &* +@all -info -config -client|kill"]
    )
    found = await findings(f"redis://bob:secret@127.0.0.1:{server.port}/0")
    for name in ("version", "role", "persistence", "buffers", "events"):
        assert found[name].value == "not told", name
        assert found[name].rating == "note"
    assert found["rights"].value == "no CLIENT KILL"


async def test_the_command(start_redis: StartRedis) -> None:
    server = start_redis(
        config={"maxmemory": "50mb", "maxmemory-policy": "volatile-ttl"}
    )
    # In a thread: the command runs a loop of its own.
    code = await anyio.to_thread.run_sync(main, ["doctor", "--url", server.url])
    assert code == 1
