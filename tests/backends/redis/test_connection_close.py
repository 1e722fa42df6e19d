"""Closing a link, whatever state it is in."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.redis.connections import Heard, eventually, killed, linked
from tests.backends.redis.some_scripts import INCR
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_closing_waits_for_the_answers(fresh_redis: RedisServer) -> None:
    with Proxy(fresh_redis.port, delay=0.005) as proxy:
        async with linked(proxy.url) as link:
            calls = [link.run(INCR, (1, "k"), int) for _ in range(20)]
            await link.aclose()
            assert [call.result() for call in calls] == list(range(1, 21))
            with pytest.raises(BackendUnavailable, match="closed by us"):
                await link.run(INCR, (1, "k"), int)
            await link.aclose()


async def test_closing_waits_for_what_has_to_be_sent_twice(
    fresh_redis: RedisServer,
) -> None:
    """The server forgot the script, and says so when we are about to close."""
    async with linked(fresh_redis.url) as link:
        fresh_redis.ask("SCRIPT", "FLUSH")
        call = link.run(INCR, (1, "k"), int)
        await link.aclose()
        assert call.result() == 1


async def test_closing_on_a_silent_server_is_bounded(start_redis: StartRedis) -> None:
    server = start_redis()
    async with linked(server.url, command_timeout=3600) as link:
        server.pause()
        call = link.run(INCR, (1, "k"), int)
        await link.aclose()
        assert isinstance(call.error, BackendUnavailable)
        server.resume()


async def test_closing_without_a_connection(start_redis: StartRedis) -> None:
    server = start_redis()
    async with linked(server.url) as link:
        await killed(server, link)
        call = link.run(INCR, (1, "k"), int)
        await link.aclose()
        assert isinstance(call.error, BackendUnavailable)


async def test_closing_under_cancellation(start_redis: StartRedis) -> None:
    server = start_redis()
    async with linked(server.url) as link:
        wire = link._protocol.transport if link._protocol else None
        server.pause()
        call = link.run(INCR, (1, "k"), int)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await link.aclose()
        assert isinstance(call.error, BackendUnavailable)
        assert wire is not None
        await wire.aclose()  # over already: returns at once
        server.resume()


async def test_closing_while_reconnecting_leaves_nothing(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    heard = Heard()
    async with linked(server.url, heard) as link:
        await killed(server, link)
        await link.aclose()
        server.start()
        assert b"aiorwlock-remote" not in server.ask("CLIENT", "LIST")
        assert heard.reconnects == 0


async def test_closing_just_when_a_connection_is_there(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calling the reconnection off comes too late: what it made is closed, too."""
    asked, go_on = anyio.Event(), anyio.Event()
    made: list[RespProtocol] = []
    heard = Heard()

    def clients() -> set[bytes]:
        listed = fresh_redis.ask("CLIENT", "LIST").splitlines()
        return {row.split()[0] for row in listed if b"aiorwlock-remote" in row}

    before = clients()  # of earlier tests, until they are collected as garbage
    async with linked(fresh_redis.url, heard) as link:

        async def reconnect(_: object) -> RespProtocol:
            talk = await link._connector.connect(())
            asked.set()
            await go_on.wait()
            made.append(talk)
            return talk

        monkeypatch.setattr(link._connector, "reconnect", reconnect)
        assert link._protocol is not None
        link._protocol.drop(BackendUnavailable(what="cut"))
        await asked.wait()
        go_on.set()
        await link.aclose()
        assert [talk.alive for talk in made] == [False]
        assert heard.reconnects == 0

        await eventually(lambda: clients() <= before, "the connection is closed")
