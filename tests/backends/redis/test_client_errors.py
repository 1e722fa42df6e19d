"""How a user's client connects, and what it meets then, as errors of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from redis.asyncio import Connection, ConnectionPool, Redis

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.backends.redis.errors import from_client
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from tests.backends.redis.clients import ON_ASYNCIO, client_of
from tests.backends.redis.rights import objects, rules
from tests.renewals import renewed
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [*ON_ASYNCIO, pytest.mark.usefixtures("renewed_often")]


async def holds(client: Redis) -> None:
    """A lock is taken and renewed: by both kinds of connection."""
    async with (
        connect(RedisBackend(client)) as locks,
        locks.mutex("order", 1) as held,
    ):
        await renewed(held)


async def fails(client: Redis) -> BaseException:
    with pytest.raises((BackendError, ConfigurationError)) as caught:
        await connect(RedisBackend(client))
    return caught.value


async def test_no_server(unused_port: int) -> None:
    async with client_of(f"redis://127.0.0.1:{unused_port}") as client:
        error = await fails(client)
    assert isinstance(error, BackendUnavailable)
    assert isinstance(error.__cause__, redis.ConnectionError)


@pytest.fixture
def unused_port(start_redis: StartRedis) -> int:
    server = start_redis()
    server.kill()
    return server.port


async def test_a_database_that_is_not_there(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("/0", "/99")
    async with client_of(url) as client:
        error = await fails(client)
    assert isinstance(error, ConfigurationError)
    assert "database 99" in str(error)


async def test_another_database_is_used(fresh_redis: RedisServer) -> None:
    url = fresh_redis.url.replace("/0", "/3")
    async with (
        client_of(url) as client,
        connect(RedisBackend(client)) as locks,
        locks.mutex("order", 1),
    ):
        assert await client.dbsize() > 0
        assert fresh_redis.ask("DBSIZE") == 0


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_user_with_the_documented_rights(
    start_redis: StartRedis, protocol: int
) -> None:
    server = start_redis()
    server.ask("ACL", "SETUSER", "locks", *rules())
    url = f"redis://locks:password@127.0.0.1:{server.port}"
    async with client_of(url, client_name="shop", protocol=protocol) as client:
        await holds(client)
    refused = {"info", "config|get", "client|kill", "client|setinfo"}
    assert objects(server) <= {name.encode() for name in refused}


async def test_a_password_that_is_wrong_or_missing(start_redis: StartRedis) -> None:
    server = start_redis(users=["default on >right ~* &* +@all"])
    for login in ("", ":wrong@"):
        url = f"redis://{login}127.0.0.1:{server.port}"
        async with client_of(url) as client:
            error = await fails(client)
        assert isinstance(error, Unsupported), error
    async with client_of(f"redis://:right@127.0.0.1:{server.port}") as client:
        await holds(client)


async def test_tls(
    start_redis: StartRedis, certificates: Certificates, tmp_path: Path
) -> None:
    server = start_redis(certificates=certificates)
    url = f"rediss://localhost:{server.tls_port}"
    async with client_of(url, ssl_ca_certs=str(certificates.authority)) as client:
        await holds(client)
    other = make_certificates(tmp_path).authority
    async with client_of(url, ssl_ca_certs=str(other)) as client:
        error = await fails(client)
    assert isinstance(error, Unsupported)
    assert "not trusted" in error.what
    assert isinstance(error.__cause__, redis.ConnectionError)


async def test_a_unix_socket(fresh_redis: RedisServer) -> None:
    async with client_of(fresh_redis.unix_url) as client:
        await holds(client)


async def test_a_connection_class_of_the_users(fresh_redis: RedisServer) -> None:
    """It may do what only the user's loop can: renewals go that way, and say so."""
    seen: list[str] = []

    class Tunnelled(Connection):
        async def _connect(self) -> None:
            seen.append(self.host)
            self.host = "127.0.0.1"
            await super()._connect()  # type: ignore[no-untyped-call]

    pool = ConnectionPool(Tunnelled, host="far.example", port=fresh_redis.port)
    client: Redis = Redis.from_pool(pool)
    await holds(client)
    assert seen == ["far.example"]
    async with connect(RedisBackend(client)) as locks:
        found = [finding async for finding in locks.examine()]
    assert [f.rating for f in found if f.name == "renewal"] == ["note"]
    await client.aclose()


async def test_code_of_the_users_that_fails(fresh_redis: RedisServer) -> None:
    def refuse(_: Connection) -> None:
        raise LookupError("no token today")

    async with client_of(fresh_redis.url, redis_connect_func=refuse) as client:
        error = await fails(client)
    assert isinstance(error, BackendUnavailable)
    assert "no token today" in str(error)
    assert isinstance(error.__cause__, LookupError)


async def test_connections_without_streams(fresh_redis: RedisServer) -> None:
    class Fake(Connection):
        async def connect(self) -> None:
            pass

    client: Redis = Redis.from_pool(ConnectionPool(Fake, port=fresh_redis.port))
    error = await fails(client)
    assert isinstance(error, Unsupported)
    assert "Fake" in str(error)


async def test_settings_that_its_own_class_refuses() -> None:
    client: Redis = Redis.from_pool(ConnectionPool(Connection, colour="red"))
    error = await fails(client)
    assert isinstance(error, ConfigurationError)
    assert isinstance(error.__cause__, TypeError)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (redis.AuthenticationError("no"), Unsupported),
        (redis.exceptions.NoPermissionError("no"), Unsupported),
        (redis.exceptions.InvalidResponse("HTTP"), Unsupported),
        (redis.BusyLoadingError("loading"), BackendUnavailable),
        (redis.TimeoutError("late"), BackendUnavailable),
        (redis.ConnectionError("refused"), BackendUnavailable),
        (redis.ResponseError("ERR"), BackendError),
        (OSError("unreachable"), BackendUnavailable),
        (BackendUnavailable(what="already"), BackendUnavailable),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_map(theirs: Exception, ours: type[BackendError]) -> None:
    assert type(from_client(theirs, "here")) is ours
