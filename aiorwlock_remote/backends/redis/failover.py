"""Notices planned failovers, by a subscription to a Sentinel."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import cycle

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import (
    RETRY_INTERVAL,
    Connector,
    Dial,
    Handshake,
    dial_url,
    run_in_thread,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    RespProtocol,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.errors import (
    BackendError,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import EventLoop

CHANNELS = (b"+switch-master", b"+promoted-slave")
"""Channels of a Sentinel that announce a new primary. The Sentinel that leads a
failover uses the second one some seconds earlier: it waits until all replicas follow
the new primary, and sends newcomers there meanwhile."""
CONNECT_DELAY = 0.05
"""Seconds until the first connection to a Sentinel: a short program makes none."""
POLL_INTERVAL = 1.0
"""Seconds between two questions over the subscribed connection, which may be dead, and
timeout in seconds of each answer."""
ASK_DELAYS = (0.0, RETRY_INTERVAL, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each round of questions that follows a message: the other Sentinels
learn of a failover a moment after the one that sent the message."""
DOUBT_DELAYS = (0.0, *(0.1,) * 15)
"""The same, once a replica is a primary: a Sentinel notices its promotion within 1.1 s.
"""


# SENTINEL FAILOVER promotes a replica while the old primary stays up, and writable
# until a Sentinel demotes it 8 to 10 s later. A connection to it does not fail, and
# what it grants meanwhile, the new primary grants to newcomers as well. So one
# subscription listens to a Sentinel, the keeper asks all Sentinels again before a batch
# of renewals, and either makes PrimaryFinder announce the switch. Connections to the
# old primary are closed then, and all grants are renewed at the new one, which says
# which of them it does not know (test_planned_failover.py).
class FailoverListener:
    """Subscribes to failover messages of one Sentinel; if it is lost, of another.

    After a message about the store's primary, all Sentinels are asked where it is.
    Messages are hints only: they name no epoch, and any user who may ``PUBLISH`` at a
    Sentinel can forge one (test_planned_failover.py).
    """

    def __init__(
        self,
        finder: PrimaryFinder,
        options: Options,
        loop: EventLoop,
        dial: Dial = dial_url,
    ) -> None:
        self._finder = finder
        self._name = finder.sentinels.name.encode()
        asked = finder.sentinels
        there = Options(
            name=asked.where,
            seeds=asked.servers,
            username=asked.username,
            password=asked.password,
            client_name=options.client_name,
            tls=asked.tls,
            connect_timeout=POLL_INTERVAL,
            command_timeout=POLL_INTERVAL,
        )
        self._connection = _SentinelConnection(
            *(there, loop, ()),
            on_message=self.message_received,
            on_reconnect=self.reconnected,
            channels=CHANNELS,
            dial=dial,
        )
        finder.on_doubt(partial(loop.call_soon, self.replica_promoted))
        self._polling = BackgroundTask(loop, self._poll)
        self._asking = BackgroundTask(loop, self._ask)
        self._last_named: Server | None = None
        self._delays: list[float] = []
        """Before each time that the Sentinels are still to be asked."""
        self._message_came = False
        self._clock = loop.clock

    def start(self) -> None:
        self._polling.start()

    async def aclose(self) -> None:
        self._polling.stop()
        self._asking.stop()
        self._connection.abort()
        try:
            await self._polling.wait_closed()
            await self._asking.wait_closed()
        finally:
            await self._connection.aclose()

    def message_received(self, channel: bytes, payload: bytes) -> None:
        """Ask all Sentinels for the primary if the message is about our primary."""
        words = payload.split(b" ")
        # "<name> <old host> …", or "slave <its name> <host> <port> @ <name> …".
        at = 0 if channel == CHANNELS[0] else 5
        if words[at : at + 1] == [self._name]:
            self._delays = [*ASK_DELAYS]
            self._message_came = True
            self._asking.wake()

    def reconnected(self) -> None:
        """Ask all Sentinels for the primary: messages may have been missed."""
        self._delays = self._delays or [0.0]
        self._asking.start()

    def replica_promoted(self) -> None:
        """Ask all Sentinels for the primary until they name the promoted replica."""
        self._delays = self._delays or [*DOUBT_DELAYS]
        self._asking.start()

    async def _poll(self) -> None:
        # A program that ends at once, as `rwlock run true`, connects to no Sentinel.
        await anyio.sleep(CONNECT_DELAY)
        while True:
            try:
                answer = await self._connection.call(
                    "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name
                )
                host, port = answer
                named = host.decode(), int(port)
            except (BackendError, TypeError, ValueError, AttributeError):
                named = None  # the connection logs why; or the Sentinel forgot the name
            # Only the first time: another Sentinel may know the same server by another
            # name for as long as it lives.
            if named is not None and named not in {
                self._last_named,
                self._finder.known,
            }:
                self.reconnected()
            self._last_named = named
            await anyio.sleep(POLL_INTERVAL)

    async def _ask(self) -> None:
        before = self._finder.switches
        try:
            while self._delays and self._finder.switches == before:
                self._message_came = False
                delay = self._delays.pop(0)
                await self._asking.sleep_until(self._clock.now() + delay)
                if self._message_came:
                    continue  # it may be the one that counts: all delays start anew
                with suppress(BackendError, ConfigurationError):
                    await run_in_thread(partial(self._finder.find, POLL_INTERVAL))
        finally:
            self._delays.clear()


class _SentinelHandshake(Handshake):
    def _check_server(self, hello: dict[str, str]) -> None:
        if hello.get("mode") != "sentinel":
            raise Unsupported(what=f"{self._options.where}: it is no Sentinel")


class _SentinelConnector(Connector):
    """Connects to the Sentinels in turn, one per attempt, in random order."""

    handshake = _SentinelHandshake

    async def connect(self, channels: Sequence[bytes]) -> RespProtocol:
        there = next(self._sentinels)
        return await self.connect_to(there, channels, there.connect_timeout)

    @cached_property
    def _sentinels(self) -> Iterator[Options]:
        servers = self._options.seeds
        shuffled = random.sample(servers, len(servers))
        return cycle(replace(self._options, host=h, port=p) for h, p in shuffled)


class _SentinelConnection(RedisConnection):
    connector = _SentinelConnector
