"""redis-py, valkey-py and hiredis without the private parts that are used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from aiorwlock_remote import BackendUnavailable, Unsupported, connect
from aiorwlock_remote.backends.redis import RedisBackend, hiredis_reader
from aiorwlock_remote.backends.redis.clients.connections import _primary_of
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.asyncio


@pytest.mark.slow
@pytest.mark.parametrize("part", ["_reader", "_writer"])
async def test_a_connection_without_streams(
    fresh_redis: RedisServer, part: str
) -> None:
    class Renamed(Connection):
        async def connect(self) -> None:
            await super().connect()  # type: ignore[no-untyped-call]
            self.renamed = getattr(self, part)
            setattr(self, part, None)

        async def disconnect(  # type: ignore[override] # theirs has more by name
            self,
            nowait: bool = False,
            **more: Any,  # noqa: ANN401 - theirs
        ) -> None:
            if hasattr(self, "renamed"):
                setattr(self, part, self.renamed)
            await super().disconnect(nowait, **more)

    client: Redis = Redis.from_pool(ConnectionPool(Renamed, port=fresh_redis.port))
    with pytest.raises(Unsupported, match=r"redis-py 6\.0 to ") as caught:
        await connect(RedisBackend(client))
    assert "not a stream of asyncio" in caught.value.what
    await client.aclose()
    url = fresh_redis.url  # the hint
    async with connect(url) as locks, locks.mutex("order", 42) as held:
        assert held.fence


async def test_the_address_that_a_client_forces_is_used_without_its_name() -> None:
    """A copy has every setting, whatever it is called."""

    class Named(Sentinel):
        forced = ""

        async def discover_master(self, service_name: str) -> tuple[str, int]:
            (sentinel,) = self.sentinels
            assert sentinel is not original.sentinels[0]
            settings = sentinel.connection_pool.connection_kwargs
            assert (settings["host"], settings["port"]) == ("127.0.0.1", 9)
            assert settings["password"] == "x"  # noqa: S105 - a test's
            assert service_name == "primary"
            return self.forced, 6379

    servers, settings = [("127.0.0.1", 9)], {"password": "x"}
    original = Named(servers, sentinel_kwargs=settings)  # type: ignore[no-untyped-call]
    original.forced = "10.0.0.9"
    pool = SentinelConnectionPool("primary", original)  # type: ignore[no-untyped-call]
    assert await _primary_of(pool, None) == ("10.0.0.9", 6379)


async def test_a_sentinel_that_names_the_former_primary_is_passed_over() -> None:
    """It has not heard of the failover yet: the next one is asked."""
    former, new = ("10.0.0.1", 6379), ("10.0.0.2", 6379)

    class Outdated(Sentinel):
        async def discover_master(self, service_name: str) -> tuple[str, int]:
            assert service_name == "primary"
            (asked,) = self.sentinels
            first = asked.connection_pool.connection_kwargs["port"] == 1
            return former if first else new

    servers = [("127.0.0.1", 1), ("127.0.0.1", 2)]
    pool = SentinelConnectionPool("primary", Outdated(servers))  # type: ignore[no-untyped-call]
    finder = PrimaryFinder(Sentinels("primary", ()), SystemClock())
    assert await _primary_of(pool, finder) == former
    finder.was_left = lambda server: server == former  # type: ignore[method-assign]
    assert await _primary_of(pool, finder) == new
    finder.was_left = lambda server: True  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(BackendUnavailable, match="before the failover"):
        await _primary_of(pool, finder)


async def test_a_hiredis_that_does_not_tell_pushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hiredis_reader, "Push", None)
    with pytest.raises(Unsupported, match=r"hiredis .* has no PushNotification"):
        hiredis_reader.new_reader()


@pytest.mark.slow
async def test_nothing_is_granted_by_such_a_hiredis(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hiredis_reader, "Push", SimpleNamespace)
    with pytest.raises(Unsupported, match=r"hiredis 3\.2 to"):
        await connect(fresh_redis.url)
