"""The keeper's batches over a user's client: on a loop of its own, or on the user's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis.clients import connections as module
from aiorwlock_remote.backends.redis.clients.connections import (
    ThreadLoopChannel,
    client_connections,
)
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.renewal_channels import MainLoopChannel
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.backends.redis.connections import Heard, killed
from tests.backends.redis.some_scripts import BOTH, INCR, PUSH
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer


@contextmanager
def own_loop(
    url: str, monkeypatch: pytest.MonkeyPatch, socket_timeout: float | None = None
) -> Iterator[ThreadLoopChannel]:
    monkeypatch.setattr(module, "ALL", BOTH)

    async def here() -> EventLoop:
        return current_event_loop()

    client: Redis = Redis.from_url(url, socket_timeout=socket_timeout)
    options, lines = client_connections(client.connection_pool, 5.0)
    batches = lines.own_channel(options, asyncio.run(here()), None)
    try:
        yield batches
    finally:
        batches.close()


def test_a_batch_in_order_with_errors_in_their_places(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_redis.ask("SET", "bad", "x")
    with own_loop(fresh_redis.url, monkeypatch) as batches:
        one, bad, two = batches.run_many(
            [(INCR, (1, "k")), (INCR, (1, "bad")), (INCR, (1, "k"))], 5
        )
    assert (one, two) == (1, 2)
    assert isinstance(bad, BackendError)


def test_a_batch_is_one_write(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(fresh_redis.port) as proxy, own_loop(proxy.url, monkeypatch) as batches:
        batches.run_many([(INCR, (1, "k"))], 5)
        before = len(proxy.chunks)
        assert batches.run_many([(INCR, (1, "k"))] * 500, 5) == list(range(2, 502))
        assert len(proxy.chunks) - before == 1


def test_forgotten_scripts_are_run_again(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_loop(fresh_redis.url, monkeypatch) as batches:
        assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
        fresh_redis.ask("SCRIPT", "FLUSH")
        batch = [(INCR, (1, "k")), (PUSH, (1, "list", "x")), (INCR, (1, "k"))]
        assert batches.run_many(batch, 5) == [2, 1, 3]


def test_a_lost_reply_is_not_repeated(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(fresh_redis.port) as proxy, own_loop(proxy.url, monkeypatch) as batches:
        assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
        proxy.cut_after(0, to="client")
        with pytest.raises(BackendUnavailable):
            batches.run_many([(INCR, (1, "k"))], 5)
        assert batches.run_many([(INCR, (1, "k"))], 5) == [3]


def test_a_connection_that_was_closed_while_idle_is_not_used(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a connection of our own: no batch is lost by it."""
    server = start_redis()
    with own_loop(server.url, monkeypatch) as batches:
        assert batches.run_many([(INCR, (1, "k"))], 5) == [1]
        server.ask("CLIENT", "KILL", "TYPE", "normal")
        assert batches.run_many([(INCR, (1, "k"))], 5) == [2]
        server.restart()
        assert batches.run_many([(INCR, (1, "k"))], 5) == [1]


def test_gives_up_in_time_and_mixes_up_no_answers(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    with own_loop(server.url, monkeypatch) as batches:
        batches.run_many([(INCR, (1, "late"))], 5)
        server.pause()
        with pytest.raises(BackendUnavailable, match="no answer in time"):
            batches.run_many([(INCR, (1, "late"))], 0.3)
        server.resume()
        assert batches.run_many([(PUSH, (1, "list", "x"))], 5) == [1]


def test_a_silent_server_does_not_cost_the_whole_lease(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be time left to renew at the server that takes its place."""
    server = start_redis()
    with own_loop(server.url, monkeypatch, socket_timeout=0.2) as batches:
        batches.run_many([(INCR, (1, "k"))], 5)
        server.pause()
        with pytest.raises(BackendUnavailable, match="no answer in time"):
            batches.run_many([(INCR, (1, "k"))], 3600)
        server.resume()
        assert batches.run_many([(PUSH, (1, "list", "x"))], 5) == [1]


def test_refused_at_the_door_it_knocks_again(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(users=["bob on >old ~* &* +@all"])
    url = f"redis://bob:new@127.0.0.1:{server.port}"
    with own_loop(url, monkeypatch) as batches:
        for _ in range(2):
            with pytest.raises(Unsupported, match="password"):
                batches.run_many([(INCR, (1, "k"))], 5)
        server.ask("ACL", "SETUSER", "bob", ">new")
        assert batches.run_many([(INCR, (1, "k"))], 5) == [1]


# ------------------------------------------------------------ on the user's loop


async def opened(url: str) -> tuple[MainLoopChannel, RedisConnection]:
    client: Redis = Redis.from_url(url)
    options, lines = client_connections(client.connection_pool, 5.0)
    host, heard = current_event_loop(), Heard()
    link = RedisConnection(
        options,
        host,
        BOTH,
        on_message=heard.message,
        on_reconnect=heard.reconnected,
        dial=lines.dial(None),
    )
    await link.open()
    return MainLoopChannel(options.where, host, link.send_at_once), link


def test_on_the_users_loop_in_order_with_errors_in_their_places(
    fresh_redis: RedisServer,
) -> None:
    async def run() -> None:
        batches, link = await opened(fresh_redis.url)
        batch = [(INCR, (1, "k")), (INCR, (1, "bad")), (INCR, (1, "k"))]
        one, bad, two = await asyncio.to_thread(batches.run_many, batch, 5)
        batches.close()
        assert (one, two) == (1, 2)
        assert isinstance(bad, BackendError)
        assert await link.call("PING") == b"PONG"  # still open: it is the store's
        await link.aclose()

    fresh_redis.ask("SET", "bad", "x")
    asyncio.run(run())


def test_without_a_connection_nothing_is_renewed_late(start_redis: StartRedis) -> None:
    """Each is told at once: there may be another way, and the lease may end first."""
    server = start_redis()

    async def run() -> None:
        batches, link = await opened(server.url)
        await killed(server, link)
        (told,) = await asyncio.to_thread(batches.run_many, [(INCR, (1, "k"))], 60)
        assert isinstance(told, BackendUnavailable)
        assert told.nothing_done
        server.start()
        assert await link.call("GET", "k") is None
        await link.aclose()

    asyncio.run(run())


def test_a_loop_that_is_busy_renews_nothing_and_nothing_late(
    fresh_redis: RedisServer,
) -> None:
    """What was given up is not sent once the loop comes round."""
    errors: list[Exception] = []

    def renew(batches: MainLoopChannel) -> None:
        try:
            batches.run_many([(INCR, (1, "k"))], 0.1)
        except BackendUnavailable as exc:
            errors.append(exc)

    async def run() -> None:
        batches, link = await opened(fresh_redis.url)
        thread = threading.Thread(target=renew, args=(batches,))
        thread.start()
        thread.join()  # the loop is blocked meanwhile
        assert "event loop was busy" in str(errors)
        await asyncio.sleep(0)
        assert await link.call("GET", "k") is None
        await link.aclose()

    asyncio.run(run())
