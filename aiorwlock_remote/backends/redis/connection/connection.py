"""The Redis connection of one ``Locks``, over which all commands and messages go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.connector import (
    Connector,
    Dial,
    dial_url,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    MAX_UNSENT,
    Arg,
    BarrierCall,
    Call,
    ProtocolHandler,
    RespProtocol,
    Script,
    SendCommand,
    SubscribeCall,
    as_is,
    pack,
)
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop

T = TypeVar("T")

MAX_CALLS = 65_536
"""Unanswered calls of one connection; more are refused unless ``must_go`` is set."""
CLOSE_TIMEOUT = 1.0
"""Seconds for which ``aclose`` waits for replies."""
MAX_QUEUED_SECONDS = 30.0
"""Seconds for which a release or withdrawal (``must_go``) waits for a connection."""
CHECKS_PER_TIMEOUT = 20
"""How often in ``command_timeout`` the oldest call is checked; a silent server is
therefore noticed two twentieths of it late at most."""
CLOSED_BY_US = "the connection was closed by us"


class RedisConnection(ProtocolHandler):
    """Connection to one server, made again whenever it is lost, until ``aclose``.

    For use in the loop's thread only. If a task that awaits a reply is cancelled, its
    command is carried out nevertheless.

    Invariants:

    * Commands are carried out in the order they were handed over, even if a connection
      is lost. All use one connection: on two, a release could overtake its acquire
      (test_lost_connection.py: ``test_calls_wait_for_the_next_connection_in_order``).
    * What was written before a loss fails with ``BackendUnavailable`` and is never sent
      again: it may have been carried out (``test_a_lost_reply_is_not_repeated``).
    * What was not written waits ``connect_timeout`` seconds for the next connection,
      then fails with ``nothing_done``. A release or withdrawal fails then, too, but is
      still sent if a connection comes within ``MAX_QUEUED_SECONDS``
      (``test_an_unsent_call_fails_in_time_unless_it_is_a_release``).
    * A server that answers nothing for ``command_timeout`` seconds counts as lost
      (``test_a_silent_server_counts_as_lost``).
    * No command of a lost connection is carried out after any of the next one if the
      user may ``CLIENT KILL`` (``test_the_lost_connection_is_ended_at_the_server``).
    """

    connector: type[Connector] = Connector

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        *,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
        channels: Iterable[bytes] = (),
        dial: Dial = dial_url,
        finder: PrimaryFinder | None = None,
    ) -> None:
        """Prepare the connection; ``open`` makes it.

        Args:
            options: The server, the credentials and the timeouts.
            loop: The event loop of all callers and callbacks.
            scripts: Loaded on every new connection.
            on_message: Called with channel and payload of each message.
            on_reconnect: Called when a lost connection was replaced, its channels were
                subscribed again and the queued calls were sent.
            channels: Subscribed during the handshake, or the connection fails.
            dial: Opens the transport of each connection.
            finder: Finds the primary, if Sentinels watch the server.
        """
        self._options = options
        self._loop = loop
        self._on_message = on_message
        self._on_reconnect = on_reconnect
        # Subscribed during the handshake: without them there is no connection.
        self._needed = tuple(channels)
        # Subscribed after it. A user who may not do that gets a connection all the same
        # (test_a_channel_that_is_forbidden_keeps_nobody_from_reconnecting).
        self._channels: dict[bytes, None] = {}  # a set that keeps its order
        self._finder = finder
        self._offline = OfflineQueue(options.where, options.connect_timeout)
        self._protocol: RespProtocol | None = None
        # The same object, or None while each new call has to be looked at first.
        self._unchecked: RespProtocol | None = None
        self._dropped: RespProtocol | None = None
        self._reloading = False
        self._closed = False
        self._connector = self.connector(
            *(options, loop, tuple(scripts), self, dial, finder)
        )
        self._reconnecting = BackgroundTask(loop, self._reconnect)
        self._watchdog = BackgroundTask(loop, self._watch)
        self._watching = False

    def call(self, *args: Arg) -> Pending[Any]:
        """Send a command and return its pending reply, not decoded."""
        return self.submit(Call(as_is, args))

    call_for_key = call
    """The counterpart of ``ClusterClient.call_for_key``: one server has all keys."""

    def servers(self) -> dict[str, SendCommand]:
        """Map the name of each server (here one) to a function that sends commands."""
        return {self._options.where: self.call}

    def states(self) -> dict[str, str]:
        """Map the server's name to the connection's state: open, lost or closed."""
        down = "closed" if self._closed else "lost"
        return {self._options.where: down if self._protocol is None else "open"}

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        """Run a script and return its pending result.

        Args:
            script: The script, loaded with the handshake.
            args: The number of keys, the keys, the arguments.
            decode: Turns the reply into the result. What it raises, the result raises.
            must_go: True for releases and withdrawals: sent late even after an error.
        """
        call = Call(decode, args, script, must_go)
        return self.send_packed(call, pack(("EVALSHA", script.sha, *args)))

    def send_packed(self, call: Call[T], packed: bytes) -> Call[T]:
        """Send a call that is encoded already, as ``run`` does; return the call."""
        # The hot path: whatever is unusual (no connection, scripts that are being
        # loaded, too much unsent, closed) has set `_unchecked` to None.
        protocol = self._unchecked
        if protocol is None or len(protocol.in_flight) >= MAX_CALLS:
            return self.submit(call)
        protocol.send(call, packed)
        if not self._watching:
            self._start_watchdog()
        return call

    def submit(self, call: Call[T]) -> Call[T]:
        """Send a call, or queue it until there is a connection. Return the call."""
        packed, protocol = call.packed(), self._protocol
        if self._closed:
            call.failed(not_sent(self._options.where, CLOSED_BY_US))
        elif (full := self._full()) and not call.must_go:
            call.failed(not_sent(self._options.where, "too much is under way"))
        elif protocol is None or self._reloading:
            self._offline.put(call, self._loop.clock.now())
            self._start_watchdog()
            # A program may have cancelled every task of the loop, this one among them:
            # the next call starts it again (test_cancelled_loop.py).
            self._reconnecting.start()
        else:
            protocol.send(call, packed)
            self._start_watchdog()
            self._unchecked = None if full else protocol
        return call

    def send(self, *calls: Call[Any]) -> None:
        """Send calls in one write; if there is no connection, queue them in order."""
        if not self.send_at_once(*calls):
            for call in calls:
                _ = self.submit(call)

    def send_at_once(self, *calls: Call[Any]) -> bool:
        """Send calls in one write; return False if there is no usable connection."""
        protocol = self._protocol
        if protocol is None or self._reloading or self._closed or self._full():
            return False
        protocol.send_all(calls)
        self._start_watchdog()
        return True

    def subscribe(self, channel: bytes) -> None:
        """Subscribe to a channel on this and all later connections, if permitted."""
        if channel not in self._channels:
            self._channels[channel] = None
            self._send_subscriptions("SUBSCRIBE", channel)

    def unsubscribe(self, channel: bytes) -> None:
        """Unsubscribe from a channel on this and all later connections."""
        if channel in self._channels:
            del self._channels[channel]
            self._send_subscriptions("UNSUBSCRIBE", channel)

    def leave_former_primary(self) -> None:
        """Close the connection if its server is not the primary any more.

        A planned failover leaves the old primary up and writable, so its connections do
        not fail. Calls in flight fail; later calls go to the new primary.
        """
        if self._protocol is not None:
            self._protocol.leave_former_primary()

    async def open(self) -> None:
        """Make the first connection; later ones are made in the background.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """
        # Registered before the first await, so that no switch is missed.
        if self._finder is not None:
            leave = partial(self._loop.call_soon, self.leave_former_primary)
            self._finder.on_switch(leave)
        self._connected(await self._connector.connect(self._needed))

    async def aclose(self) -> None:
        """Wait for outstanding replies, ``CLOSE_TIMEOUT`` seconds at most, and close.

        If the caller is cancelled, the connection is closed at once. New calls fail.
        """
        barrier = self.begin_close()
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT), suppress(BackendError):
                await barrier
        finally:
            await self._close()

    def begin_close(self) -> Call[None]:
        """Refuse new calls; return a call that ends once earlier ones are answered."""
        barrier = BarrierCall()
        # Submitted before new calls are refused: it would be refused itself.
        if not self._closed and (self._offline or self._oldest() is not None):
            _ = self.submit(barrier)
        else:
            barrier.set_result(None)
        self._closed, self._unchecked = True, None
        return barrier

    def abort(self) -> None:
        """Close for good, without waiting; calls that are not answered fail."""
        self._closed, self._unchecked = True, None
        protocol, self._protocol = self._protocol, None
        self._reconnecting.stop()
        self._watchdog.stop()
        if protocol is not None:
            self._dropped = protocol
            where = self._options.where
            log_debug("connection_closed", server=where)
            protocol.drop(BackendUnavailable(what=f"{where}: closed by us"))
        self._offline.fail_all(CLOSED_BY_US)

    async def _close(self) -> None:
        self.abort()  # before the first await, where a second cancellation may strike
        await self._reconnecting.wait_closed()
        await self._watchdog.wait_closed()
        # `_reconnect` may have got its connection in the moment it was stopped
        # (test_closing_just_when_a_connection_is_there).
        self.abort()
        if self._dropped is not None:
            with anyio.CancelScope(shield=True):
                await self._dropped.transport.aclose()

    # ProtocolHandler

    def message_received(self, channel: bytes, payload: bytes) -> None:
        self._on_message(channel, payload)

    def scripts_lost(self) -> None:
        self._reloading, self._unchecked = True, None

    def ready(self) -> None:
        self._reloading = False
        protocol = self._protocol
        if protocol is not None and protocol.alive:
            # All that is queued goes before any new call.
            if self._offline:
                protocol.send_all(self._offline.take())
            self._unchecked = None if self._closed else protocol

    def buffer_full(self) -> None:
        self._unchecked = None

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        if self._protocol is None:
            return  # lost during the handshake: the connector raises the error
        log_debug(
            "connection_lost",
            server=self._options.where,
            unsent=len(unsent),
            failed=len(self._protocol.in_flight),
            error=error,
        )
        self._protocol = self._unchecked = None
        self._reloading = False
        self._connector.outage.note("redis_lost", error)
        # In front of what was queued meanwhile, so that the order is kept over the loss
        # (test_calls_of_the_lost_tick_use_the_next_connection).
        if unsent:
            self._offline.put_back(unsent, self._loop.clock.now())
            self._start_watchdog()
        self._reconnecting.start()

    # Background tasks

    async def _reconnect(self) -> None:
        while self._protocol is None:
            self._connected(await self._connector.reconnect(self._needed))
            if self._closed:  # stopping this task came too late
                return
            self._connector.outage.recovered()
            # Only now: a waiter that is woken asks over this connection, on which its
            # channels are subscribed again
            # (test_messages_come_again_after_a_reconnect).
            self._on_reconnect()

    def _start_watchdog(self) -> None:
        self._watching = True
        self._watchdog.start()

    async def _watch(self) -> None:
        timeout, clock = self._options.command_timeout, self._loop.clock
        marked, since = self._oldest(), clock.now()
        last_look = since
        try:
            while True:
                await anyio.sleep(timeout / CHECKS_PER_TIMEOUT)
                now, oldest = clock.now(), self._oldest()
                # If this loop stood still (a blocking call, SIGSTOP), the reply may lie
                # in the socket already: the server gets the whole time again.
                stalled = now - last_look > timeout / 2
                last_look = now
                if oldest is not marked or stalled:
                    marked, since = oldest, now
                elif marked is not None and now - since >= timeout:
                    self._drop_silent(marked)
                    marked, since = self._oldest(), now
                self._offline.fail_late(
                    now, f"no connection: {self._connector.outage.reason}"
                )
                if not self._offline and self._oldest() is None:
                    return
        finally:  # also if a program cancelled every task of the loop
            self._watching = False

    def _drop_silent(self, oldest: Call[Any]) -> None:
        where, seconds = self._options.where, self._options.command_timeout
        log_debug(
            "request_timed_out", server=where, request=oldest.name, seconds=seconds
        )
        if self._protocol is not None:
            error = BackendUnavailable(what=f"{where}: silent for {seconds:g} s")
            self._protocol.drop(error)

    def _connected(self, protocol: RespProtocol) -> None:
        log_debug("connection_opened", server=self._options.where)
        self._protocol = protocol
        self._send_subscriptions("SUBSCRIBE", *self._channels)
        self.ready()
        if self._oldest() is not None:
            self._start_watchdog()

    def _full(self) -> bool:
        protocol = self._protocol
        if protocol is None:
            return len(self._offline) >= MAX_CALLS
        calls = len(protocol.in_flight) + len(self._offline)
        # Bytes, too: while the server reads slowly, the transport's buffer would grow
        # without limit (test_too_many_bytes_unsent_are_refused).
        return calls >= MAX_CALLS or protocol.transport.unsent() > MAX_UNSENT

    def _send_subscriptions(self, verb: str, *channels: bytes) -> None:
        # Without a connection nothing is queued: the next one subscribes to all
        # channels by itself (test_channels_that_change_while_it_reconnects).
        if self._protocol is not None:
            for channel in channels:
                call = SubscribeCall(verb, channel)
                self._protocol.send(call, call.packed())
                call.log_failure()
                self._start_watchdog()

    def _oldest(self) -> Call[Any] | None:
        protocol = self._protocol
        return protocol.in_flight[0] if protocol and protocol.in_flight else None


class OfflineQueue:
    """Calls that could not be sent yet, in order.

    A call waits ``patience`` seconds, then it fails. A release or withdrawal
    (``must_go``) fails then, too, but stays queued for ``MAX_QUEUED_SECONDS``, if that
    is longer, to be sent. Both times count from the moment when the call was first put
    into any queue.
    """

    def __init__(self, where: str, patience: float) -> None:
        self._where = where
        self._patience = patience
        self._calls: deque[Call[Any]] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def must_go(self) -> bool:
        """Return True if a release or withdrawal (``must_go``) is queued."""
        return any(call.must_go for call in self._calls)

    def put(self, call: Call[Any], now: float) -> None:
        call.queued_at = call.queued_at or now
        self._calls.append(call)

    def put_back(self, calls: Sequence[Call[Any]], now: float) -> None:
        """Put calls in front of the queue: they were handed over before the others.

        ``now``: loop time; the wait of calls that were never queued begins.
        """
        for call in calls:
            call.queued_at = call.queued_at or now
        self._calls.extendleft(reversed(calls))

    def take(self) -> Iterable[Call[Any]]:
        calls, self._calls = self._calls, deque()
        return calls

    def fail_late(self, now: float, why: str) -> None:
        """Fail calls queued longer than allowed at ``now``; ``why`` is the text."""
        late: list[tuple[Call[Any], bool]] = []
        for call in self.take():
            waited = now - call.queued_at
            # As long as it does not know that it has failed, a call never leaves.
            longest = max(self._patience, MAX_QUEUED_SECONDS)
            stays = waited < (longest if call.must_go else self._patience)
            if stays:
                self._calls.append(call)
            if waited >= self._patience and not call.done():
                late.append((call, stays))
        # Only now: the callbacks of a failed call may queue others.
        for call, stays in late:
            call.failed(not_sent(self._where, why, for_good=not stays))

    def fail_all(self, why: str) -> None:
        for call in self.take():
            call.failed(not_sent(self._where, why))
