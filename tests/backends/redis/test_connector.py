"""Connecting to a server, or the error that says why not. Both kinds of connection."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import pytest

from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from tests.backends.redis.connections import linked, renewal_channel
from tests.backends.redis.some_scripts import INCR
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.fix_redis import StartRedis
from tests.servers.process import IP
from tests.servers.redis import RedisServer
from tests.servers.strangers import read_to_the_end, stranger

pytestmark = pytest.mark.anyio

Reach = Callable[..., Awaitable[Any]]


async def by_link(url: str, timeout: float = 5.0) -> object:
    async with linked(url, connect_timeout=timeout) as link:
        return await link.run(INCR, (1, "k"), int)


async def by_keeper(url: str, timeout: float = 5.0) -> object:
    channel = renewal_channel(url)

    def renewed() -> object:
        try:
            return channel.run_many([(INCR, (1, "k"))], timeout)[0]
        finally:
            channel.close()

    return await anyio.to_thread.run_sync(renewed)


@pytest.fixture(params=[by_link, by_keeper], ids=["link", "keeper"])
def reach(request: pytest.FixtureRequest) -> Reach:
    found: Reach = request.param
    return found


@pytest.fixture(scope="session")
def tls_redis(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Any:  # noqa: ANN401 - an iterator of servers
    server = RedisServer(tmp_path_factory.mktemp("tls"), certificates=certificates)
    yield server
    server.close()


def tls_url(server: RedisServer, host: str = "localhost", **query: object) -> str:
    options = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    return f"rediss://{host}:{server.tls_port}/0?{options}"


async def test_tcp_and_unix_socket(reach: Reach, fresh_redis: RedisServer) -> None:
    assert await reach(fresh_redis.url) == 1
    assert await reach(fresh_redis.unix_url) == 2
    assert await reach(f"redis://localhost:{fresh_redis.port}") == 3


async def test_database(reach: Reach, fresh_redis: RedisServer) -> None:
    assert await reach(f"redis://127.0.0.1:{fresh_redis.port}/3") == 1
    assert await reach(f"{fresh_redis.unix_url}?db=3") == 2
    assert fresh_redis.ask("EXISTS", "k") == 0
    with pytest.raises(ConfigurationError, match="no database 99"):
        await reach(f"redis://127.0.0.1:{fresh_redis.port}/99")


async def test_client_name(fresh_redis: RedisServer) -> None:
    async with linked(f"{fresh_redis.url}?client_name=web-1"):
        assert b"name=web-1" in fresh_redis.ask("CLIENT", "LIST")


async def test_users(reach: Reach, start_redis: StartRedis) -> None:
    server = start_redis(
        users=["default on >first ~* &* +@all", "bob on >p@ss ~* &* +@all"]
    )
    at = f"127.0.0.1:{server.port}"
    assert await reach(f"redis://:first@{at}") == 1
    assert await reach(f"redis://bob:p%40ss@{at}") == 2
    for login in ("bob:hunter2@", ":hunter2@", ""):
        with pytest.raises(Unsupported, match="password") as caught:
            await reach(f"redis://{login}{at}")
        assert "hunter2" not in f"{caught.value} {caught.value!r}"


async def test_a_missing_permission(reach: Reach, start_redis: StartRedis) -> None:
    server = start_redis(users=["low on >pw ~* &* +@all -script"])
    with pytest.raises(Unsupported, match="NOPERM"):
        await reach(f"redis://low:pw@127.0.0.1:{server.port}")


async def test_tls(
    reach: Reach, tls_redis: RedisServer, certificates: Certificates
) -> None:
    tls_redis.ask("DEL", "k")
    ca = certificates.authority
    assert await reach(tls_url(tls_redis, ca_file=ca)) == 1
    cert, key = certificates.certificate, certificates.key
    url = tls_url(tls_redis, ca_file=ca, cert_file=cert, key_file=key)
    assert await reach(url) == 2
    assert await reach(tls_url(tls_redis, "127.0.0.1", verify="no")) == 3


async def test_tls_under_load(
    tls_redis: RedisServer, certificates: Certificates
) -> None:
    tls_redis.ask("DEL", "k", "block")
    async with linked(tls_url(tls_redis, ca_file=certificates.authority)) as link:
        calls = [link.run(INCR, (1, "k"), int) for _ in range(2000)]
        block = link.call("SET", "block", b"x" * 3_000_000)
        whole = link.call("GET", "block")
        assert [await call for call in calls] == list(range(1, 2001))
        assert await block == b"OK"
        assert len(await whole) == 3_000_000


async def test_tls_to_another_name(
    reach: Reach, tls_redis: RedisServer, certificates: Certificates
) -> None:
    with pytest.raises(Unsupported, match="not trusted") as caught:
        await reach(tls_url(tls_redis, "127.0.0.1", ca_file=certificates.authority))
    assert "127.0.0.1" in str(caught.value)


async def test_tls_of_an_unknown_authority(
    reach: Reach, tls_redis: RedisServer, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=r"not trusted.*ca_file"):
        await reach(tls_url(tls_redis))
    other = make_certificates(tmp_path).authority
    with pytest.raises(Unsupported, match=r"not trusted.*ca_file"):
        await reach(tls_url(tls_redis, ca_file=other))


async def test_tls_to_a_server_without(reach: Reach, fresh_redis: RedisServer) -> None:
    # Redis waits for the end of the line that it takes the TLS greeting for.
    with pytest.raises(BackendUnavailable, match=r"TLS|closed|reset|in time"):
        await reach(f"rediss://127.0.0.1:{fresh_redis.port}", 0.5)


async def test_plain_to_a_tls_port(reach: Reach, tls_redis: RedisServer) -> None:
    with pytest.raises(BackendUnavailable, match=r"closed|reset"):
        await reach(f"redis://127.0.0.1:{tls_redis.tls_port}")


OLD = (
    b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n"
    b"$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
    b"$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
    b"$3\r\nx:y\r\n$3\r\nsha\r\n$3\r\nsha\r\n"
)


@pytest.mark.parametrize(
    ("says", "kind", "said"),
    [
        (OLD, Unsupported, r"version is 6\.2\.14.*7\.0"),
        (b"-ERR unknown command `HELLO`\r\n" * 4, Unsupported, "renamed or disabled"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Unsupported, "does not speak"),
        (b"-ERR max number of clients reached\r\n", BackendUnavailable, "max number"),
        (b"", BackendUnavailable, "closed"),
    ],
)
async def test_servers_that_are_no_redis(
    reach: Reach, says: bytes, kind: type[BackendError], said: str
) -> None:
    with (
        stranger(says) as port,
        pytest.raises(kind, match=said),
    ):
        await reach(f"redis://127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_a_peer_that_says_nothing(reach: Reach, scheme: str) -> None:
    with (
        stranger(None) as port,
        pytest.raises(BackendUnavailable, match="no answer in time"),
    ):
        await reach(f"{scheme}://127.0.0.1:{port}", 0.4)


async def test_a_server_that_cannot_be_reached(reach: Reach, tmp_path: Path) -> None:
    with stranger(None) as port:
        pass
    with pytest.raises(BackendUnavailable, match=rf"127\.0\.0\.1:{port}"):
        await reach(f"redis://127.0.0.1:{port}")
    with pytest.raises(BackendUnavailable, match=r"none\.sock"):
        await reach(f"unix://{tmp_path}/none.sock")
    with pytest.raises(BackendUnavailable, match=r"no-such-host\.invalid"):
        await reach("redis://no-such-host.invalid")
    with pytest.raises(BackendUnavailable):
        await reach(f"redis://{'x' * 80}.invalid")


async def test_giving_up_while_connecting() -> None:
    """The server, which has not answered, sees the end of the connection."""
    with socket.create_server((IP, 0)) as server:
        with anyio.move_on_after(0.1) as scope:
            await by_link(f"redis://{IP}:{server.getsockname()[1]}")
        assert scope.cancelled_caught
        with server.accept()[0] as peer:
            await anyio.to_thread.run_sync(read_to_the_end, peer)


async def test_a_replica(start_redis: StartRedis, fresh_redis: RedisServer) -> None:
    replica = start_redis(config={"replicaof": f"127.0.0.1 {fresh_redis.port}"})
    with pytest.raises(BackendUnavailable, match="replica"):
        await by_link(replica.url)


async def test_command_timeout_in_the_url(fresh_redis: RedisServer) -> None:
    options = options_of(parse(f"{fresh_redis.url}?command_timeout=2"))
    assert options == replace(options, command_timeout=2.0, connect_timeout=5.0)
