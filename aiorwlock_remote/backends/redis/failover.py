"""Planned failovers: noticed at a Sentinel, and before renewals.

``SENTINEL FAILOVER`` promotes a replica while the old primary stays up, and writable
until a Sentinel demotes it 8 to 10 s later. A connection to it does not fail, and what
it grants meanwhile the new primary grants to newcomers. So one subscription hears what
a Sentinel tells, the keeper asks all of them again before a batch of renewals, and
either makes ``PrimaryFinder`` tell of the switch: connections to the old primary are
hung up, and all grants are renewed at the new one, which says which it does not know.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.connection.calls import Request
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import (
    RETRY_INTERVAL,
    Connector,
    Dial,
    dial_url,
    run_in_thread,
)
from aiorwlock_remote.backends.redis.connection.handshake import Handshake
from aiorwlock_remote.backends.redis.connection.protocol import (
    FORMER_PRIMARY,
    RespProtocol,
)
from aiorwlock_remote.backends.redis.connections import RenewalChannel
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.ports import Clock, EventLoop

CHANNELS = (b"+switch-master", b"+promoted-slave")
"""The Sentinel that leads a failover tells of the second some seconds earlier: it waits
until all replicas follow the new primary, and sends newcomers there meanwhile."""
CONNECT_DELAY = 0.05
"""Seconds until a Sentinel is connected to; what was missed until then is asked for."""
POLL_INTERVAL = 1.0
"""Seconds between two questions over the subscription, which may be dead, and seconds
that an answer may take."""
ASK_DELAYS = (0.0, RETRY_INTERVAL, 0.1, 0.2, 0.4, 0.8)
"""Seconds before the Sentinels are asked, and asked again: the others learn of a
failover a moment after the one that told."""
CONFIRM_TIMEOUT = 0.5
"""Seconds for which a batch of renewals waits for the Sentinels, a quarter of the time
it has at most."""


class FailoverListener:
    """Subscribed to one Sentinel, and to another one if that is lost.

    What it tells is a hint, upon which all Sentinels are asked: a message names no
    epoch, and anybody who may ``PUBLISH`` at a Sentinel can forge one.
    """

    def __init__(
        self,
        finder: PrimaryFinder,
        options: Options,
        host: EventLoop,
        dial: Dial = dial_url,
    ) -> None:
        """Not started. ``options``: the store's."""
        self._finder = finder
        self._name = finder.sentinels.name.encode()
        self._link = _SentinelConnection(self, finder, options, host, dial)
        self._polling = BackgroundTask(host, self._poll)
        self._asking = BackgroundTask(host, self._ask)
        self._said: Server | None = None
        self._pauses: list[float] = []
        """Before each time that the Sentinels are still to be asked."""
        self._sooner = anyio.Event()

    def start(self) -> None:
        """Subscribe, in the background."""
        self._polling.start()

    async def aclose(self) -> None:
        """Listen no more; waits for nothing that a Sentinel has to say."""
        self._polling.call_off()
        self._asking.call_off()
        self._link.abort()
        try:
            await self._polling.wait_closed()
            await self._asking.wait_closed()
        finally:
            await self._link.aclose()

    def heard(self, channel: bytes, payload: bytes) -> None:
        """A message came; ask if it is about our primary."""
        words = payload.split(b" ")
        # "<name> <old host> …", or "slave <its name> <host> <port> @ <name> …".
        at = 0 if channel == CHANNELS[0] else 5
        if words[at : at + 1] == [self._name]:
            self._pauses = [*ASK_DELAYS]
            self._sooner.set()
            self._asking.start()

    def missed(self) -> None:
        """There may have been messages that did not come."""
        self._pauses = self._pauses or [0.0]
        self._asking.start()

    async def _poll(self) -> None:
        # A program that ends at once, as `rwlock run true`, does not connect at all.
        await anyio.sleep(CONNECT_DELAY)
        while True:
            try:
                answer = await self._link.call(
                    "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name
                )
                host, port = answer
                said = host.decode(), int(port)
            except (BackendError, TypeError, ValueError, AttributeError):
                said = None  # the log of the link says why; or it forgot the name
            # Once: another Sentinel may call the same server by another name.
            if said is not None and said not in {self._said, self._finder.known}:
                self.missed()
            self._said = said
            await anyio.sleep(POLL_INTERVAL)

    async def _ask(self) -> None:
        before = self._finder.switches
        try:
            while self._pauses and self._finder.switches == before:
                self._sooner = anyio.Event()
                with anyio.move_on_after(self._pauses.pop(0)):
                    await self._sooner.wait()
                    continue  # a message came, which may be the one that counts
                with suppress(BackendError, ConfigurationError):
                    await run_in_thread(partial(self._finder.find, POLL_INTERVAL))
        finally:
            self._pauses.clear()


class _SentinelHandshake(Handshake):
    """As a store's, at a Sentinel of any version that knows RESP3."""

    def _fit(self, hello: dict[str, str]) -> None:
        if hello.get("mode") != "sentinel":
            raise Unsupported(what=f"{self._options.where}: it is no Sentinel")


class _SentinelConnection(RedisConnection):
    """A ``RedisConnection`` to one Sentinel after the other."""

    def __init__(
        self,
        listener: FailoverListener,
        finder: PrimaryFinder,
        options: Options,
        host: EventLoop,
        dial: Dial,
    ) -> None:
        asked = finder.sentinels
        there = Options(
            name=asked.where,
            username=asked.username,
            password=asked.password,
            client_name=options.client_name,
            tls=asked.tls,
            connect_timeout=POLL_INTERVAL,
            command_timeout=POLL_INTERVAL,
        )
        super().__init__(
            *(there, host, ()),
            on_message=listener.heard,
            on_reconnect=listener.missed,
            channels=CHANNELS,
            dial=dial,
        )
        self._connector = _SentinelConnector(asked.servers, there, host, self, dial)


class _SentinelConnector(Connector):
    """Each connection is to the next Sentinel; the first is chosen at random."""

    def __init__(
        self,
        servers: Sequence[Server],
        options: Options,
        host: EventLoop,
        link: RedisConnection,
        dial: Dial,
    ) -> None:
        super().__init__(options, host, (), link, dial)
        self._servers = random.sample(servers, len(servers))
        self._next = 0

    greeting = _SentinelHandshake

    async def connect(self, channels: Sequence[bytes]) -> RespProtocol:
        """A subscription to the next Sentinel."""
        server = self._servers[self._next % len(self._servers)]
        self._next += 1
        there = replace(self._options, host=server[0], port=server[1])
        return await self._connect(there, channels, there.connect_timeout)


class PrimaryChannel:
    """Renewals at the primary that the Sentinels name now.

    They are asked before a batch, so that a message that was missed costs little, and
    what a former primary answers is not believed.
    """

    def __init__(
        self, batches: RenewalChannel, finder: PrimaryFinder, clock: Clock
    ) -> None:
        """``batches`` go to the primary that ``finder`` knows when they connect."""
        self._batches = batches
        self._finder = finder
        self._clock = clock
        self._switches = finder.switches
        self._busy = False
        finder.on_switch(self._leave_former)

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``RenewalChannel``."""
        deadline = self._clock.now() + timeout
        self._finder.confirm(min(CONFIRM_TIMEOUT, timeout / 4))
        if self._switches != self._finder.switches:
            self._switches = self._finder.switches
            self._batches.close()
        self._busy = True
        try:
            left = max(0.0, deadline - self._clock.now())
            answers = self._batches.run_many(batch, left)
        finally:
            self._busy = False
        if self._switches != self._finder.switches:
            raise BackendUnavailable(
                what=f"{self._finder.sentinels.where}: {FORMER_PRIMARY}"
            )
        return answers

    def give_up(self) -> None:
        """As ``RenewalChannel``."""
        self._batches.give_up()

    def abort(self) -> None:
        """As ``RenewalChannel``."""
        self._batches.abort()

    def close(self) -> None:
        """As ``RenewalChannel``."""
        self._batches.close()

    def _leave_former(self) -> None:
        """In any thread. A batch that has not connected yet goes to the new one."""
        if self._busy and self._switches != self._finder.switches:
            self._batches.abort()
