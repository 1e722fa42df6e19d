"""A user's client: what is taken of it, and what it cannot do to locks."""

from __future__ import annotations

import socket
import sys
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.backends.redis.clients.connections import client_connections
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from tests.backends.redis.clients import ON_ASYNCIO, client_of, linked_by
from tests.backends.redis.connections import Heard, eventually
from tests.backends.redis.some_scripts import INCR
from tests.renewals import renewed
from tests.servers.fix_redis import StartRedis
from tests.servers.process import IP
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.strangers import read_to_the_end

pytestmark = ON_ASYNCIO


async def test_locks_beside_the_users_own_commands(fresh_redis: RedisServer) -> None:
    async with (
        client_of(fresh_redis.url, decode_responses=True) as client,
        connect(RedisBackend(client)) as locks,
        connect(fresh_redis.url) as others,
    ):
        async with locks.mutex("order", 1):
            assert await others.mutex("order", 1).try_acquire() is None
            assert await client.exists("mutex_locks/order,1") == 1
        assert await client.ping()


@pytest.mark.parametrize(
    "settings",
    [
        {"protocol": protocol, "decode_responses": decode}
        for protocol in (2, 3)
        for decode in (False, True)
    ],
    ids=str,
)
async def test_protocol_and_decoding_do_not_matter(
    fresh_redis: RedisServer, settings: dict[str, Any]
) -> None:
    heard = Heard()
    async with (
        client_of(fresh_redis.url, **settings) as client,
        linked_by(client, heard) as link,
    ):
        assert await link.call("HGETALL", "none") == {}
        assert await link.call("ECHO", b"\xff") == b"\xff"
        link.subscribe(b"channel")
        await link.call("PUBLISH", "channel", "hello")
        await eventually(lambda: bool(heard.messages), "a message came")
        assert heard.messages == [(b"channel", b"hello")]


async def test_a_lost_reply_is_not_repeated_though_the_client_would(
    fresh_redis: RedisServer,
) -> None:
    retry = Retry(NoBackoff(), 3)
    heard = Heard()
    with Proxy(fresh_redis.port) as proxy:
        async with client_of(proxy.url, retry=retry, retry_on_timeout=True) as client:
            await client.ping()
            proxy.cut_after(0, to="client")
            await client.eval(INCR.text, 1, "theirs")
            assert await client.get("theirs") == b"2"  # the control: sent twice
            async with linked_by(client, heard) as link:
                proxy.cut_after(0, to="client")
                with pytest.raises(BackendUnavailable):
                    await link.run(INCR, (1, "ours"), int)
                await eventually(lambda: heard.reconnects == 1, "reconnected")
                assert await link.run(INCR, (1, "ours"), int) == 2
            assert client.get_retry() is retry  # and nothing of the client is changed


async def test_an_exhausted_pool_is_none_of_ours(fresh_redis: RedisServer) -> None:
    pool = BlockingConnectionPool.from_url(
        fresh_redis.url, max_connections=1, timeout=0.05
    )
    client: Redis = Redis.from_pool(pool)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_take, client)
        await eventually(
            lambda: b"blocked_clients:1" in fresh_redis.ask("INFO", "clients"), "full"
        )
        with pytest.raises(redis.ConnectionError):
            await client.ping()
        async with connect(RedisBackend(client)) as locks, locks.mutex("order", 1):
            assert await locks.mutex("order", 1).locked()
        fresh_redis.ask("RPUSH", "list", "x")
    await client.aclose()


async def _take(client: Redis) -> None:
    await client.blpop(["list"], 30)


@pytest.mark.usefixtures("renewed_often")
async def test_a_client_closed_under_us(fresh_redis: RedisServer) -> None:
    """Locks go on, over new connections, too."""
    with Proxy(fresh_redis.port) as proxy:
        async with client_of(proxy.url) as client:
            await client.ping()
            async with connect(RedisBackend(client)) as locks:
                await client.aclose()
                async with locks.mutex("order", 1) as held:
                    proxy.cut()
                    await renewed(held)
                async with locks.mutex("order", 1) as again:
                    assert again.fence > held.fence


@pytest.mark.usefixtures("renewed_often")
async def test_all_connections_are_closed_but_the_clients(
    fresh_redis: RedisServer,
) -> None:
    """The keeper's as well; warnings of connections left open would be errors."""

    def connected() -> int:
        return len(fresh_redis.ask("CLIENT", "LIST").splitlines()) - 1

    before = connected()
    async with client_of(fresh_redis.url) as client:
        await client.ping()
        async with (
            connect(RedisBackend(client)) as locks,
            locks.mutex("order", 1),
        ):
            await eventually(lambda: connected() == before + 3, "renewing")
        await eventually(lambda: connected() == before + 1, "closed")
        assert await client.ping()


async def test_a_connection_in_the_making_is_closed(fresh_redis: RedisServer) -> None:
    """Whoever opens is cancelled, or runs out of time, while the server is silent."""
    with Proxy(fresh_redis.port) as proxy:
        proxy.black_hole(on=True)
        async with client_of(proxy.url, client_name="held-up") as client:
            with anyio.move_on_after(0.2) as scope:
                await connect(RedisBackend(client))
            assert scope.cancelled_caught
            with pytest.raises(BackendUnavailable):
                await connect(RedisBackend(client), connect_timeout=0.2)
            proxy.black_hole(on=False)
            async with connect(RedisBackend(client)) as locks:
                await locks.mutex("order", 1).locked()


async def test_a_server_that_never_answers_sees_the_end_of_the_connection() -> None:
    with socket.create_server((IP, 0)) as server:
        url = f"redis://{IP}:{server.getsockname()[1]}"
        async with client_of(url) as client:
            with anyio.move_on_after(0.1) as scope:
                await connect(RedisBackend(client))
            assert scope.cancelled_caught
            with server.accept()[0] as peer:
                await anyio.to_thread.run_sync(read_to_the_end, peer)


async def test_objects_that_are_no_redis_client_are_refused() -> None:
    sentinel = Sentinel([("localhost", 26379)])  # type: ignore[no-untyped-call]
    cases: list[tuple[Any, str]] = [
        (RedisCluster("localhost", 1), "cluster"),
        (redis.Redis(), "blocks"),
        (sentinel, "not a client"),
        (sentinel.slave_for("shop"), "replicas"),
        ("redis://localhost", "not a client"),
    ]
    for client, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            RedisBackend(client)


async def test_under_trio_a_client_is_refused_with_a_hint_at_the_url(
    redis_server: RedisServer,
) -> None:
    client: Redis = Redis.from_url(redis_server.url)
    on_trio = partial(anyio.run, _opened, client, backend="trio")
    with pytest.raises(ConfigurationError, match="asyncio only"):
        await anyio.to_thread.run_sync(on_trio)


async def _opened(client: Redis) -> None:
    await connect(RedisBackend(client))


async def test_importing_the_backend_imports_no_driver() -> None:
    program = (
        "import sys; from aiorwlock_remote.backends.redis import RedisBackend; "
        "sys.exit(bool({'redis', 'hiredis', 'valkey'} & {*sys.modules}))"
    )
    await anyio.run_process([sys.executable, "-c", program])


async def test_a_driver_that_is_not_installed_is_named(
    redis_server: RedisServer,
) -> None:
    program = f"""
import asyncio, sys
sys.modules["hiredis"] = None
from redis.asyncio import Redis
from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.backends.redis import RedisBackend

async def main():
    try:
        await connect(RedisBackend(Redis.from_url({redis_server.url!r})))
    except ConfigurationError as exc:
        print(exc)

asyncio.run(main())
"""
    ran = await anyio.run_process([sys.executable, "-c", program])
    assert "needs hiredis" in ran.stdout.decode()


@pytest.mark.parametrize("of", ["client", "Sentinel"])
async def test_code_of_the_users_stays_on_the_users_loop(of: str) -> None:
    """Else the settings are used on a loop of the keeper's own."""
    theirs: dict[str, Any] = {}
    watched: dict[str, Any] = {}
    chosen = theirs if of == "client" else watched
    chosen["credential_provider"] = redis.CredentialProvider()
    sentinel = Sentinel([("localhost", 26379)], sentinel_kwargs=watched)  # type: ignore[no-untyped-call]
    for client, off_loop in (
        (sentinel.master_for("shop", **theirs), False),
        (Sentinel([("localhost", 26379)]).master_for("shop"), True),  # type: ignore[no-untyped-call]
        (Redis(), True),
        (Redis(ssl=True), True),
        (Redis(unix_socket_path="/run/redis"), True),
    ):
        _, lines = client_connections(client.connection_pool, 5.0)
        assert lines.off_loop is off_loop, client


async def test_no_password_in_its_repr() -> None:
    backend = RedisBackend(Redis.from_url("redis://bob:hidden@localhost"))
    assert repr(backend) == "<RedisBackend of redis's Redis>"


async def test_without_a_connection_for_the_keeper(start_redis: StartRedis) -> None:
    """``maxclients``: it renews over the connection that there is."""
    server = start_redis()
    async with (
        client_of(server.url) as client,
        connect(RedisBackend(client)) as locks,
    ):
        await client.config_set("maxclients", 1)  # it keeps its own connection
        async with locks.mutex("order", 1, lease=1.2) as held:
            ends = await client.pexpiretime("mutex_locks/order,1")
            while await client.pexpiretime("mutex_locks/order,1") <= ends:
                held.check()
