"""The connection of one ``Locks``: every command and every message goes over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.connection.calls import (
    Ask,
    BarrierCall,
    Call,
    as_is,
    pack,
)
from aiorwlock_remote.backends.redis.connection.connector import (
    Connector,
    Dial,
    dial_url,
)
from aiorwlock_remote.backends.redis.connection.offline_queue import OfflineQueue
from aiorwlock_remote.backends.redis.connection.protocol import MAX_UNSENT, RespProtocol
from aiorwlock_remote.backends.redis.connection.script import Arg, Script
from aiorwlock_remote.backends.redis.connection.subscriptions import Subscriptions
from aiorwlock_remote.backends.redis.connection.watchdog import SilenceWatchdog
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop

T = TypeVar("T")

MAX_CALLS = 65_536
CLOSE_TIMEOUT = 1.0
CLOSED_BY_US = "the connection was closed by us"


class RedisConnection:
    """One connection, made again whenever it is lost, until ``aclose``.

    Commands are carried out in the order they were handed over. What was sent over a
    connection that is lost fails with ``BackendUnavailable`` and is never sent again:
    nobody knows whether it was carried out. What was not sent yet waits for the next
    connection, but no longer than ``connect_timeout``, and was certainly not carried
    out if it fails. What ``must_go`` fails then, too, but is still sent if a connection
    comes within 30 s. A server that is silent for ``command_timeout`` counts as lost.
    Before the first command on a new connection the server is told to forget the lost
    one, if our user may do so.

    Used in its loop's thread only. Cancelling whoever waits for an answer takes
    nothing back.
    """

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        scripts: Sequence[Script],
        *,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
        channels: Iterable[bytes] = (),
        dial: Dial = dial_url,
        finder: PrimaryFinder | None = None,
    ) -> None:
        """Unconnected; see ``open_link``."""
        self._options = options
        self._host = host
        self._on_message = on_message
        self._on_reconnect = on_reconnect
        self._channels = Subscriptions(channels)
        self._aside = OfflineQueue(options.where, options.connect_timeout)
        # The connection, and the same while it takes new calls at once.
        self._talk: RespProtocol | None = None
        self._open: RespProtocol | None = None
        self._last: RespProtocol | None = None
        self._held = False
        self._closed = False
        self._connector = Connector(options, host, tuple(scripts), self, dial, finder)
        self._reconnecting = BackgroundTask(host, self._reconnect)
        self._watch = SilenceWatchdog(
            host, options.command_timeout, self._oldest, self._silent, self._tidy
        )

    def call(self, *args: Arg) -> Pending[Any]:
        """Send a command; the answer is as it came."""
        return self.hand_over(Call(as_is, args))

    def call_at(self, *args: Arg) -> Pending[Any]:
        """Send a command to the server that has the key behind its name: this one."""
        return self.call(*args)

    def everywhere(self) -> dict[str, Ask]:
        """How to ask each server that has keys of its own, by its name."""
        return {self._options.where: self.call}

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        """Run a script: ``args`` are the number of keys, the keys, the arguments.

        ``decode`` gets the answer when it comes; what it raises, the Pending raises.
        ``must_go``: not refused because too much is under way already, and sent late
        rather than never, when whoever awaits it has been told that it failed.
        """
        call = Call(decode, args, script, must_go)
        talk = self._open
        if talk is None or len(talk.in_flight) >= MAX_CALLS:
            return self.hand_over(call)
        talk.send(call, pack(("EVALSHA", script.sha, *args)))
        if not self._watch.armed:
            self._watch.arm()
        return call

    def send(self, *calls: Call[Any]) -> None:
        """Send them, together: in one write, or put aside behind each other."""
        if not self.send_at_once(b"", *calls):
            for call in calls:
                _ = self.hand_over(call)

    def send_at_once(self, key: bytes, *calls: Call[Any]) -> bool:  # noqa: ARG002 - as above
        """Send them in one write where this key is; False: there is no connection."""
        talk = self._talk
        if talk is None or self._held or self._closed or self._full():
            return False
        talk.send_all(calls)
        self._watch.arm()
        return True

    def leave_former(self) -> None:
        """Hang up on a server that is not the primary any more.

        What is under way fails, and what is handed over from now on goes to the new
        one: a planned failover leaves the old one up and writable.
        """
        if self._talk is not None:
            self._talk.leave_former()

    def subscribe(self, channel: bytes) -> None:
        """Hear a channel over this connection and all to come, if our user may."""
        self._tell(self._channels.add(channel))

    def unsubscribe(self, channel: bytes) -> None:
        """Not any more."""
        self._tell(self._channels.remove(channel))

    async def open(self) -> None:
        """Connect; later connections are made in the background. As ``open_link``."""
        self._connected(await self._connector.connect(self._channels.needed))

    async def aclose(self) -> None:
        """Wait for the answers still to come, 1 s at most, and close for good.

        Closed at once if it is cancelled. Calls fail from now on.
        """
        last = self.closing()
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT), suppress(BackendError):
                await last
        finally:
            await self._close()

    def closing(self) -> Call[None]:
        """Take no more calls; done when those there are have been answered."""
        last = BarrierCall()
        if not self._closed and (self._aside or self._oldest() is not None):
            _ = self.hand_over(last)
        else:
            last.set_result(None)
        self._closed, self._open = True, None
        return last

    # What the conversation tells.

    def heard(self, channel: bytes, payload: bytes) -> None:
        """A message came."""
        self._on_message(channel, payload)

    def unheard(self, channel: bytes) -> None:
        """Channels of slots are a cluster's."""

    def refused(self, call: Call[Any], text: str) -> bool:  # noqa: ARG002 - all of them
        """Errors are answers."""
        return False

    def holding(self) -> None:
        """The server forgot our scripts: calls are put aside until it knows them."""
        self._held, self._open = True, None

    def ready(self) -> None:
        """It knows them again."""
        self._held = False
        talk = self._talk
        if talk is not None and talk.alive:
            if self._aside:
                talk.send_all(self._aside.take())
            self._open = None if self._closed else talk

    def crowded(self) -> None:
        """Too much waits to be sent: each call is looked at until it is less."""
        self._open = None

    def ended(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        """The connection is lost."""
        if self._talk is None:
            return  # it never got through its greeting
        self._talk = self._open = None
        self._held = False
        self._connector.outage.lost(error)
        if unsent:
            self._aside.put_back(unsent, self._host.clock.now())
            self._watch.arm()
        self._reconnecting.start()

    # What is done in the background.

    async def _reconnect(self) -> None:
        while self._talk is None:
            talk = await self._connector.reconnect(self._channels.needed)
            self._connected(talk)
            if self._closed:  # calling us off came too late
                return
            self._connector.outage.end()
            self._on_reconnect()

    def _connected(self, talk: RespProtocol) -> None:
        self._talk = talk
        self._tell(self._channels.others())
        self.ready()
        if self._oldest() is not None:
            self._watch.arm()

    def abort(self) -> None:
        """Close for good, without waiting for anything."""
        self._closed, self._open = True, None
        talk, self._talk = self._talk, None
        self._reconnecting.call_off()
        self._watch.errand.call_off()
        if talk is not None:
            self._last = talk
            talk.drop(BackendUnavailable(what=f"{self._options.where}: closed by us"))
        self._aside.fail_all(CLOSED_BY_US)

    async def _close(self) -> None:
        self.abort()  # first: a second cancellation may cut the waits
        await self._reconnecting.wait_closed()
        await self._watch.errand.wait_closed()
        self.abort()  # calling off came too late, perhaps
        if self._last is not None:
            with anyio.CancelScope(shield=True):
                await self._last.wire.aclose()

    # Slow paths of a call.

    def hand_over(self, call: Call[T]) -> Call[T]:
        """Send it, or put it aside until there is a connection."""
        packed, talk = call.packed(), self._talk
        if self._closed:
            call.failed(not_sent(self._options.where, CLOSED_BY_US))
        elif (full := self._full()) and not call.must_go:
            call.failed(not_sent(self._options.where, "too much is under way"))
        elif talk is None or self._held:
            self._aside.put(call, self._host.clock.now())
            self._watch.arm()
            self._reconnecting.start()  # unless it runs: all tasks may be cancelled
        else:
            talk.send(call, packed)
            self._watch.arm()
            self._open = None if full else talk
        return call

    def _full(self) -> bool:
        talk = self._talk
        if talk is None:
            return len(self._aside) >= MAX_CALLS
        under_way = len(talk.in_flight) + len(self._aside)
        return under_way >= MAX_CALLS or talk.wire.unsent() > MAX_UNSENT

    def _tell(self, calls: Iterable[Call[Any]]) -> None:
        if self._talk is not None:  # else said after the next greeting
            for call in calls:
                self._talk.send(call, call.packed())
                call.log_failure()
                self._watch.arm()

    def _oldest(self) -> object:
        talk = self._talk
        return talk.in_flight[0] if talk is not None and talk.in_flight else None

    def _silent(self) -> None:
        seconds = self._options.command_timeout
        if self._talk is not None:
            why = f"{self._options.where}: silent for {seconds:g} s"
            self._talk.drop(BackendUnavailable(what=why))

    def _tidy(self, now: float) -> bool:
        why = f"no connection: {self._connector.outage.why}"
        self._aside.fail_late(now, why)
        return len(self._aside) > 0
