"""Makes connections: dial, greet, judge.

Why there is no connection, and what the log says of it.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from aiorwlock_remote._util.threads import thread_refused
from aiorwlock_remote.backends.redis.connection.calls import Script
from aiorwlock_remote.backends.redis.connection.handshake import (
    Handshake,
    Peer,
    client_kill,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    ProtocolHandler,
    RespProtocol,
    Transport,
)
from aiorwlock_remote.backends.redis.errors import from_failure
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import ATTEMPTS, PrimaryFinder
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockError,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")


class OutageLog:
    """Each reason is written once, until the connection is back.

    Reasons that take turns (one of two addresses is silent, the other refuses) would
    else fill the log for as long as the server is away.
    """

    def __init__(self, server: str) -> None:
        """There is no connection yet, and nothing is wrong with that."""
        self._server = server
        self._told: set[str] = set()
        self.why: str = ""

    def lost(self, error: LockError) -> None:
        """There was a connection."""
        self._note("redis_lost", error)

    def goes_on(self, error: Exception) -> None:
        """There is none in its place."""
        self._note("redis_away", error)

    def end(self) -> None:
        """There is one."""
        if self._told:
            log_event(log, "redis_reconnected", logging.INFO, server=self._server)
        self._told.clear()

    def _note(self, event: str, error: Exception) -> None:
        self.why = str(error)
        if self.why in self._told:
            return
        self._told.add(self.why)
        # What is no error of ours is a defect: where it came from is needed.
        defect = None if isinstance(error, LockError) else error
        where = self._server
        log_event(log, event, exc_info=defect, server=where, error=self.why)


T = TypeVar("T")

STABLE_AFTER = 5.0
"""Seconds a connection must have lasted for the back-off to start anew."""

RETRY_INTERVAL = 0.05
"""Seconds until Sentinel is asked again."""

MAX_REMEMBERED_SERVERS = 16
"""Of servers whose last connection of ours is remembered."""

Dial = Callable[[Options, RespProtocol, EventLoop], Awaitable[Transport]]
"""Connects a conversation to the server; what it raises is an error of the network's
or of ours."""


async def dial_url(options: Options, talk: RespProtocol, host: EventLoop) -> Transport:
    """A connection of our own, by the driver of the running loop."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        from aiorwlock_remote.backends.redis.connection import trio_transport  # noqa: PLC0415

        return await trio_transport.dial(options, talk, host)
    from aiorwlock_remote.backends.redis.connection import asyncio_transport  # noqa: PLC0415

    return await asyncio_transport.dial(options, talk)


class Connector:
    """Makes one connection after the other, each in the place of the one before."""

    greeting: type[Handshake] = Handshake

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        scripts: Sequence[Script],
        listener: ProtocolHandler,
        dial: Dial = dial_url,
        finder: PrimaryFinder | None = None,
    ) -> None:
        """Not connected yet. ``finder``: the store's, if Sentinels watch the server."""
        if finder is None and options.sentinels is not None:
            finder = PrimaryFinder(options.sentinels, host.clock)
        self._finder = finder
        self._dial = dial
        self._options = options
        self._host = host
        self._scripts = scripts
        self._listener = listener
        self._since = 0.0
        self._attempts = 0
        self._peers: dict[str, Peer] = {}
        self.outage: OutageLog = OutageLog(options.where)
        self.peer = None

    @property
    def peer(self) -> Peer | None:
        """The last connection, to be ended before there is another to that server.

        So are the last ones to other servers, where we may be sent back to.
        """
        return self._peer

    @peer.setter
    def peer(self, peer: Peer | None) -> None:
        self._peer = peer
        if peer is not None and peer.run:
            self._peers.pop(peer.run, None)
            self._peers[peer.run] = peer
            if len(self._peers) > MAX_REMEMBERED_SERVERS:
                del self._peers[next(iter(self._peers))]

    async def connect(self, channels: Sequence[bytes]) -> RespProtocol:
        """A connection that is fit for commands, within ``connect_timeout``.

        With Sentinel it is asked where the primary is, and asked again, for half of
        that time, while what it names is not there or no primary (any more).

        Raises:
            BackendError: the server cannot be reached, or is not fit for us.
            ConfigurationError: no such database, or unusable certificates.
        """
        options, finder = self._options, self._finder
        if options.sentinels is None or finder is None:
            timeout = options.connect_timeout
            if finder is not None and finder.known is None:
                # A client asks its Sentinels itself. What they say later is a switch
                # only by what they said before it connected.
                with suppress(BackendError, ConfigurationError):
                    await run_in_thread(partial(finder.find, timeout / ATTEMPTS))
            switches = 0 if finder is None else finder.switches
            return await self._connect(options, channels, timeout, switches)
        # The last attempt is to end, and to be told of, within the timeout.
        clock, attempt = self._host.clock, options.connect_timeout / ATTEMPTS
        last = clock.now() + (ATTEMPTS / 2) * attempt
        while True:
            found = await run_in_thread(partial(finder.find, attempt / 2))
            host, port = found.server
            there = replace(options, host=host, port=port)
            try:
                return await self._connect(there, channels, attempt, found.switches)
            except BackendUnavailable:
                if clock.now() > last:
                    raise
            await anyio.sleep(RETRY_INTERVAL)

    async def _connect(
        self,
        options: Options,
        channels: Sequence[bytes],
        timeout: float,
        switches: int = 0,
    ) -> RespProtocol:
        """``switches``: how many the finder had seen when it named this server."""
        current: Callable[[], bool] | None = None
        if (finder := self._finder) is not None:
            current = lambda: finder.switches == switches  # noqa: E731
        talk = RespProtocol(options.where, self._scripts, self._listener, current)
        try:
            with anyio.fail_after(timeout):
                talk.wire = await self._dial(options, talk, self._host)
                try:
                    self.peer = await self._greet(options, talk, channels)
                except BaseException:
                    talk.wire.abort()
                    with anyio.CancelScope(shield=True):
                        await talk.wire.aclose()
                    raise
        except BackendError:
            raise
        except (OSError, EOFError, UnicodeError) as exc:  # Unicode: no such host name
            raise from_failure(exc, options.where) from exc
        self._since = self._host.clock.now()
        return talk

    async def reconnect(self, channels: Sequence[bytes]) -> RespProtocol:
        """The same, tried for as long as it takes, with pauses."""
        if self._host.clock.now() - self._since > STABLE_AFTER:
            self._attempts = 0
        while True:
            if self.peer is not None or self._attempts:  # the first time goes at once
                await anyio.sleep(back_off(self._attempts, random.random()))
            self._attempts += 1
            try:
                return await self.connect(channels)
            except Exception as exc:  # noqa: BLE001 - defects too: it goes on
                self.outage.goes_on(exc)

    async def _greet(
        self, options: Options, talk: RespProtocol, channels: Sequence[bytes]
    ) -> Peer:
        greeting = self.greeting(options, self._scripts, channels)
        talk.send_all(greeting.calls)
        for call in greeting.calls:
            with suppress(BackendError):  # judged together
                await call
        peer = greeting.judge()
        before = self._peers.get(peer.run)
        if before is not None:
            stale = client_kill(before)
            talk.send_all([stale])
            await stale
        if not talk.alive or talk.leave_former():
            raise EOFError
        return peer


async def run_in_thread(ask: Callable[[], T]) -> T:
    """Ask Sentinels: names are waited for there, too. A cancelled one ends itself."""
    try:
        return await anyio.to_thread.run_sync(
            ask,
            abandon_on_cancel=True,
            limiter=anyio.CapacityLimiter(1),  # the user's may be used up
        )
    except RuntimeError as exc:
        raise thread_refused(exc) from exc
