"""What `rwlock doctor` says of real servers with real settings."""

from __future__ import annotations

import anyio.to_thread
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.cli.main import main
from aiorwlock_remote.ports import Finding
from tests.servers.fix_redis import StartRedis

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
        *("persistence", "memory", "events", "rights"),
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


async def test_replicas_are_told_of(start_redis: StartRedis) -> None:
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
    for name in ("version", "role", "persistence", "events"):
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
