"""Hosts whose names nobody resolves in time, or whose first address is silent."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from aiorwlock_remote.backends.redis.addresses import SocketAddress
from aiorwlock_remote.backends.redis.connection import asyncio_transport
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.backends.redis.connections import linked, renewal_channel
from tests.backends.redis.some_scripts import INCR
from tests.backends.redis.test_sentinel import LOCAL, says
from tests.loops import LOOPS
from tests.servers.redis import RedisServer
from tests.servers.sentinel import NAME
from tests.servers.strangers import stranger

SLOW = "slow.invalid"
ASYNCIO = [loop for loop in LOOPS if str(loop.id) != "trio"]


class Resolver:
    """The system's, but for one name: that waits until it ``may_answer``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_answer = threading.Event()
        self.addresses: list[tuple[str, int]] = []
        self.asked: int = 0
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(
        self,
        host: str,
        port: int,
        flags: int = 0,
        **more: Any,  # noqa: ANN401 - as the system's
    ) -> list[Any]:
        if host != SLOW or flags:
            return self._real(host, port, flags=flags, **more)
        self.asked += 1
        if not self.may_answer.wait(10):
            raise socket.gaierror("the resolver is away")
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6 if ":" in known[0] else socket.AF_INET, kind, 0, "", known)
            for known in self.addresses
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver(monkeypatch)
    yield resolver
    resolver.may_answer.set()


def keeper_of(server: RedisServer) -> ThreadLoopChannel:
    return renewal_channel(server.url, host=SLOW)


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that answers no connection: its queue is full."""
    with (
        socket.create_server((LOCAL, 0), backlog=0) as server,
        socket.socket() as client,
    ):
        client.connect(server.getsockname())
        yield server.getsockname()


def test_the_keeper_waits_for_no_resolver_longer_than_it_may(
    fresh_redis: RedisServer, resolver: Resolver
) -> None:
    """It tells of losses; and asks once, not again and again."""
    keeper = keeper_of(fresh_redis)
    resolver.addresses = [(LOCAL, fresh_redis.port)]
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="no answer in time"):
            keeper.run_many([(INCR, (1, "k"))], 0.05)
    resolver.may_answer.set()
    assert keeper.run_many([(INCR, (1, "k"))], 5) == [1]
    assert resolver.asked == 1
    keeper.close()


def test_the_next_connection_asks_anew(
    fresh_redis: RedisServer, resolver: Resolver
) -> None:
    keeper = keeper_of(fresh_redis)
    resolver.may_answer.set()
    with pytest.raises(BackendUnavailable, match="no address"):
        keeper.run_many([(INCR, (1, "k"))], 5)
    resolver.addresses = [(LOCAL, fresh_redis.port)]
    assert keeper.run_many([(INCR, (1, "k"))], 5) == [1]
    keeper.close()


def test_a_silent_address_leaves_time_for_the_next(
    fresh_redis: RedisServer, resolver: Resolver
) -> None:
    keeper = keeper_of(fresh_redis)
    resolver.may_answer.set()
    with black_hole() as silent:
        resolver.addresses = [silent, (LOCAL, fresh_redis.port)]
        assert keeper.run_many([(INCR, (1, "k"))], 2) == [1]
        keeper.close()
        resolver.addresses = [silent, silent]
        with pytest.raises(BackendUnavailable, match="no answer in time"):
            keeper.run_many([(INCR, (1, "k"))], 0.2)
    keeper.close()


def test_an_address_of_a_kind_this_host_does_not_have(
    fresh_redis: RedisServer, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ::1 of localhost, where IPv6 is switched off."""
    made = socket.socket

    def new(family: int = -1, *more: Any, **still: Any) -> socket.socket:  # noqa: ANN401 - as it is
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no such kind")
        return made(family, *more, **still)

    resolver.may_answer.set()
    with stranger(says(fresh_redis.port, 7)) as port:
        monkeypatch.setattr(socket, "socket", new)
        resolver.addresses = [("::1", port), (LOCAL, port)]
        sentinels = Sentinels(NAME, ((SLOW, port),))
        found = PrimaryFinder(sentinels, SystemClock()).find(5).server
    assert found == (LOCAL, fresh_redis.port)
    resolver.addresses = [("::1", fresh_redis.port), (LOCAL, fresh_redis.port)]
    keeper = keeper_of(fresh_redis)
    assert keeper.run_many([(INCR, (1, "k"))], 5) == [1]
    keeper.close()


def test_sentinels_that_are_known_are_asked_though_others_are_not(
    resolver: Resolver,
) -> None:
    with stranger(says(1000, 7)) as port:
        servers = (SLOW, 1), (LOCAL, port)
        found = PrimaryFinder(Sentinels(NAME, servers), SystemClock()).find(1).server
    assert found == (LOCAL, 1000)
    assert not resolver.may_answer.is_set()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ASYNCIO)
async def test_a_link_leaves_time_for_the_next_address(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On trio the addresses race each other."""
    there = (socket.AF_INET, (LOCAL, fresh_redis.port))
    with black_hole() as silent:

        async def addresses(_: Options) -> list[SocketAddress]:
            return [(socket.AF_INET, silent), there]

        monkeypatch.setattr(asyncio_transport, "_addresses", addresses)
        async with linked(fresh_redis.url, connect_timeout=2) as link:
            assert await link.run(INCR, (1, "k"), int) == 1


@pytest.mark.asyncio
async def test_a_resolver_that_is_away_keeps_one_thread_of_the_loops(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often we try: the user's own calls in threads need the others."""
    loop, may_answer, asked = asyncio.get_running_loop(), asyncio.Event(), list[str]()

    async def getaddrinfo(host: str, _: int, **__: int) -> list[Any]:
        asked.append(host)
        await may_answer.wait()
        known = (LOCAL, fresh_redis.port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", known)]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    options = replace(options_of(parse(fresh_redis.url)), host=SLOW)
    for _ in range(3):
        dialling = asyncio.create_task(asyncio_transport._addresses(options))
        await asyncio.sleep(0)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
    may_answer.set()
    await asyncio_transport._addresses(options)
    assert asked == [SLOW]
    await asyncio_transport._addresses(options)
    assert asked == [SLOW, SLOW]
