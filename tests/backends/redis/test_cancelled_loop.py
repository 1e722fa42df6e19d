"""A program that cancels every task of its loop, and goes on: what is ours as well."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.redis.clients import linked_by
from tests.backends.redis.connections import Heard, eventually, killed, linked, settled
from tests.backends.redis.some_scripts import INCR
from tests.cancelled_tasks import cancel_all_others
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer


@pytest.mark.parametrize("by_client", [False, True])
def test_while_the_server_is_away(start_redis: StartRedis, by_client: bool) -> None:
    server = start_redis()

    async def run() -> None:
        heard = Heard()
        async with AsyncExitStack() as stack:
            link = await opened(stack, server, heard, by_client)
            await killed(server, link)
            await cancel_all_others()
            server.start()
            assert await settled(link.run(INCR, (1, "k"), int)) == 1
            assert heard.reconnects == 1

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("by_client", [False, True])
def test_a_silent_server_is_noticed(start_redis: StartRedis, by_client: bool) -> None:
    server = start_redis()

    async def run() -> None:
        heard = Heard()
        async with AsyncExitStack() as stack:
            link = await opened(stack, server, heard, by_client)
            server.pause()
            silent = link.run(INCR, (1, "k"), int)
            await asyncio.sleep(0)
            await cancel_all_others()
            again = link.run(INCR, (1, "k"), int)
            for call in (silent, again):
                assert isinstance(await settled(call), Exception)
            server.resume()
            await eventually(lambda: heard.reconnects > 0, "reconnected")

    asyncio.run(run())


def test_just_when_it_is_to_reconnect(start_redis: StartRedis) -> None:
    """What was started and not begun is cancelled as well, and may be started again."""
    server = start_redis()

    async def run() -> None:
        heard = Heard()
        async with linked(server.url, heard) as link:
            assert link._protocol is not None
            link._protocol.drop(BackendUnavailable(what="lost"))
            late = link.run(INCR, (1, "k"), int)
            await cancel_all_others()
            assert await settled(link.run(INCR, (1, "k"), int)) == 2
            assert late.result() == 1
            assert heard.reconnects == 1

    asyncio.run(run())


async def opened(
    stack: AsyncExitStack, server: RedisServer, heard: Heard, by_client: bool
) -> RedisConnection:
    if not by_client:
        return await stack.enter_async_context(
            linked(server.url, heard, connect_timeout=2, command_timeout=1)
        )
    client: Redis = Redis.from_url(server.url, socket_timeout=1)
    stack.push_async_callback(client.aclose)
    return await stack.enter_async_context(linked_by(client, heard))
