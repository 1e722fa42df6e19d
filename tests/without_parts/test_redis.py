"""redis-py, valkey-py and hiredis without the private parts that are used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from valkey.asyncio.sentinel import Sentinel as ValkeySentinel

from aiorwlock_remote import Unsupported, connect
from aiorwlock_remote.backends.redis import RedisBackend, hiredis_reader
from aiorwlock_remote.backends.redis.clients.connections import _primary_of
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


@pytest.mark.parametrize(
    ("library", "settings"),
    [
        pytest.param(Sentinel, {}, id="redis"),
        pytest.param(Sentinel, {"force_master_ip": "10.0.0.9"}, id="forced"),
        pytest.param(ValkeySentinel, {}, id="valkey"),
    ],
)
async def test_the_primary_that_was_named_to_us_is_found_by_the_clients_code(
    library: Any,  # noqa: ANN401 - of either library
    settings: dict[str, str],
) -> None:
    """No Sentinel is asked again: it would list the former primary for a while."""
    manager = library([("127.0.0.1", 9)], min_other_sentinels=2, **settings)
    pool = SentinelConnectionPool("primary", manager)  # type: ignore[no-untyped-call]
    named = await _primary_of(pool, ("10.0.0.2", 6380))
    assert named == (settings.get("force_master_ip", "10.0.0.2"), 6380)


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
