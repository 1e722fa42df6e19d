"""The connection of one ``Locks``: every command and every message goes over it.

Which channels are heard, over however many connections.

Calls that could not be sent yet, in order, and how long they may wait.

Notices a server that has gone silent. Costs nothing per command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.connection.calls import (
    Arg,
    BarrierCall,
    Call,
    Script,
    SendCommand,
    SubscribeCall,
    as_is,
    pack,
)
from aiorwlock_remote.backends.redis.connection.connector import (
    Connector,
    Dial,
    dial_url,
)
from aiorwlock_remote.backends.redis.connection.protocol import MAX_UNSENT, RespProtocol
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop


class Subscriptions:
    """The channels, and what has to be said so that the server knows them.

    Those ``needed`` are part of the greeting: without them there is no connection. The
    others are asked for after it, and done without where the user may not hear them.
    """

    def __init__(self, needed: Iterable[bytes] = ()) -> None:
        """No others yet."""
        self.needed: tuple[bytes, ...] = tuple(needed)
        self._others: dict[bytes, None] = {}  # a set that keeps its order

    def add(self, channel: bytes) -> list[SubscribeCall]:
        """Hear it; what to say for that."""
        if channel in self._others:
            return []
        self._others[channel] = None
        return [SubscribeCall("SUBSCRIBE", channel)]

    def remove(self, channel: bytes) -> list[SubscribeCall]:
        """Hear it no more; what to say for that."""
        if channel not in self._others:
            return []
        del self._others[channel]
        return [SubscribeCall("UNSUBSCRIBE", channel)]

    def others(self) -> list[SubscribeCall]:
        """What to say after the greeting."""
        return [SubscribeCall("SUBSCRIBE", channel) for channel in self._others]


MAX_QUEUED_SECONDS = 30.0


class OfflineQueue:
    """A queue of calls. Whoever awaits one has ``patience`` seconds.

    One that must go stays for ``MAX_QUEUED_SECONDS`` seconds all the same. Both count
    from when it was first put aside, here or elsewhere. ``where``: the server, for
    messages.
    """

    def __init__(self, where: str, patience: float) -> None:
        """Empty."""
        self._where = where
        self._patience = patience
        self._calls: deque[Call[Any]] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def must_go(self) -> bool:
        """Whether any of them must go."""
        return any(call.must_go for call in self._calls)

    def put(self, call: Call[Any], now: float) -> None:
        """At the end."""
        call.since = call.since or now
        self._calls.append(call)

    def put_back(self, calls: Sequence[Call[Any]], now: float) -> None:
        """In front: they were handed over before all that is here."""
        for call in calls:
            call.since = call.since or now
        self._calls.extendleft(reversed(calls))

    def take(self) -> Iterable[Call[Any]]:
        """All of them, in order; none is left."""
        calls, self._calls = self._calls, deque()
        return calls

    def take_first(self) -> Call[Any] | None:
        """The first one, if there is any."""
        return self._calls.popleft() if self._calls else None

    def fail_late(self, now: float, why: str) -> None:
        """Tell those whose time of patience is over, each once."""
        late: list[Call[Any]] = []
        for call in self.take():
            waited = now - call.since
            if waited >= self._patience and not call.done():
                late.append(call)
            if waited < (MAX_QUEUED_SECONDS if call.must_go else self._patience):
                self._calls.append(call)
        for call in late:  # whoever is told may hand over others
            call.failed(not_sent(self._where, why, for_good=not call.must_go))

    def fail_all(self, why: str) -> None:
        """Tell all; none is left."""
        for call in self.take():
            call.failed(not_sent(self._where, why))


CHECKS_PER_TIMEOUT = 20
"""Looks in the time of patience; the verdict is at most two looks late."""


class SilenceWatchdog:
    """Looks from time to time, while something is under way, at what is the oldest.

    ``oldest()``: the oldest unanswered command or None; ``silent()`` is called when
    that has been the same one for ``patience`` seconds; ``tidy(now)`` is called at each
    look and says whether other work is left to watch.
    """

    def __init__(
        self,
        host: EventLoop,
        patience: float,
        oldest: Callable[[], object],
        silent: Callable[[], object],
        tidy: Callable[[float], bool],
    ) -> None:
        """Not armed."""
        self._clock = host.clock
        self._patience = patience
        self._oldest = oldest
        self._silent = silent
        self._tidy = tidy
        self.errand: BackgroundTask = BackgroundTask(host, self._run)
        self.armed: bool = False

    def arm(self) -> None:
        """Something is under way."""
        if not self.armed:
            self.armed = True
            self.errand.start()

    async def _run(self) -> None:
        try:
            await self._look()
        finally:  # also if somebody cancelled every task of the loop
            self.armed = False

    async def _look(self) -> None:
        tick = self._patience / CHECKS_PER_TIMEOUT
        marked, since = self._oldest(), self._clock.now()
        last = since
        while True:
            await anyio.sleep(tick)
            now, oldest = self._clock.now(), self._oldest()
            # After a pause of our own (a loop that hung, SIGSTOP) the answer may lie
            # in the socket: the server gets its time anew.
            stalled = now - last > self._patience / 2
            last = now
            if oldest is not marked or stalled:
                marked, since = oldest, now
            elif oldest is not None and now - since >= self._patience:
                self._silent()
                marked, since = self._oldest(), now
            busy = self._tidy(now)
            if not busy and self._oldest() is None:
                return


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

    def everywhere(self) -> dict[str, SendCommand]:
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
