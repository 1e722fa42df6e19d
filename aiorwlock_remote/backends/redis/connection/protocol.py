"""One connection's commands and answers, in order. No I/O, no clock.

Answers come in the order of the commands, so a queue of calls matches them; pushes
(messages) stand between them and take no place in the queue, but for the confirmation
of a subscription, which is a push in the place of an answer.

**Scripts the server forgot** (NOSCRIPT: a restart behind a proxy, SCRIPT FLUSH). New
calls are held back until all answers have come; then the scripts are loaded and the
refused calls run again, in their order. A refused call whose key a later call has
changed meanwhile (somebody else loaded the scripts in between) is not run again: it
could undo what came after it.

Calls that were refused because the server had forgotten their scripts.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Any, Protocol

import hiredis

from aiorwlock_remote.backends.redis.connection.calls import (
    Arg,
    BarrierCall,
    Call,
    Script,
    ShardUnsubscribeCall,
    SubscribeCall,
    as_is,
)
from aiorwlock_remote.backends.redis.errors import from_failure, not_redis
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.logs import log_event

REDIRECTIONS: frozenset[str] = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
"""How a node of a cluster begins to say that it has not got the slot, or not quite."""


class NoScriptRetries:
    """Kept until all under way is answered; then each is sent again with its text.

    ``calls``: in the order of the answers; ``whole``: those sent again, until all that
    is under way is answered.
    """

    __slots__ = ("_by_key", "calls", "whole")

    def __init__(self) -> None:
        """None."""
        self.calls: dict[Call[Any], None] = {}  # a set that keeps its order
        self._by_key: defaultdict[Arg, list[Call[Any]]] = defaultdict(list)
        self.whole: frozenset[Call[Any]] = frozenset()

    def keeps(self, call: Call[Any], text: str) -> bool:
        """Whether a call was refused for that, and not when its text was sent.

        Or because its slot went away, behind one with the same key that is kept: each
        would be sent on by itself, and could pass the other.
        """
        if call.script is None:
            return False
        key, verb = call.args[1], text.partition(" ")[0]
        if verb == "NOSCRIPT":
            if call in self.whole:
                return False
        elif verb not in REDIRECTIONS or key not in self._by_key:
            return False
        self.calls[call] = None
        self._by_key[key].append(call)
        return True

    def keep_behind(self, last: BarrierCall) -> None:
        """Sent again behind all that are kept."""
        self.calls[last] = None

    def take_at(self, key: Arg) -> list[Call[Any]]:
        """Those with this key: they are not sent again."""
        taken = self._by_key.pop(key, [])
        for call in taken:
            del self.calls[call]
        return taken

    def take(self) -> list[Call[Any]]:
        """All of them, to be sent again now: nothing else is under way."""
        again = list(self.calls)
        self.clear()
        self.whole = frozenset(again)
        return again

    def clear(self) -> None:
        """There are none any more, and none was sent again."""
        self.calls.clear()
        self._by_key.clear()
        self.whole = frozenset()


log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")

MAX_UNSENT = 64 * 2**20
FORMER_PRIMARY = "another server is the primary now"

_MESSAGES = {b"message", b"smessage"}
_CONFIRMS = {b"subscribe", b"unsubscribe", b"ssubscribe"}
_MORE = object()
_Push = hiredis.PushNotification
_Error = hiredis.ReplyError


class Transport(Protocol):
    """A connection's outgoing half, as a driver gives it. None of these raises."""

    def write(self, data: bytes) -> None:
        """Send these bytes, now or as soon as possible, in order."""

    def wake(self) -> None:
        """Call the conversation's ``flush`` when this tick of the loop is over."""

    def unsent(self) -> int:
        """How many bytes still wait to be sent."""

    def abort(self) -> None:
        """Close at once; ``RespProtocol.lost`` is called soon."""

    async def aclose(self) -> None:
        """Close at once and wait until nothing of it is left."""


class ProtocolHandler(Protocol):
    """Whoever holds the conversation."""

    def heard(self, channel: bytes, payload: bytes) -> None:
        """A message came."""

    def unheard(self, channel: bytes) -> None:
        """Nothing more comes on a channel of a slot: the server gave it away."""

    def refused(self, call: Call[Any], text: str) -> bool:
        """Whether an error is taken care of, and the call left unanswered for now."""

    def holding(self) -> None:
        """No new calls from now on."""

    def ready(self) -> None:
        """New calls are welcome again."""

    def crowded(self) -> None:
        """More than ``MAX_UNSENT`` bytes wait to be sent."""

    def ended(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        """The connection is lost; these calls were certainly not sent.

        Subscriptions are not among them: the next connection has its own.
        """


class RespProtocol:
    """What was said and not yet answered on one connection."""

    __slots__ = (
        "_current",
        "_forgotten",
        "_listener",
        "_out",
        "_reader",
        "_scripts",
        "_where",
        "alive",
        "in_flight",
        "wire",
    )

    def __init__(
        self,
        where: str,
        scripts: Sequence[Script],
        listener: ProtocolHandler,
        current: Callable[[], bool] | None = None,
    ) -> None:
        """Before a word was said; ``wire`` is set by who connects.

        ``current()``: whether it still is this server that is to be asked.
        """
        self._current = current
        self._where = where
        self._scripts = scripts
        self._listener = listener
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._out: list[bytes] = []
        self._forgotten = NoScriptRetries()
        self.in_flight: deque[Call[Any]] = deque()
        self.alive: bool = True
        self.wire: Transport

    def leave_former(self) -> bool:
        """Give it up if another server is the primary by now; whether it was."""
        if self._current is None or self._current():
            return False
        self.drop(BackendUnavailable(what=f"{self._where}: {FORMER_PRIMARY}"))
        return True

    def under_way(self) -> list[Call[Any]]:
        """What was handed over and not answered, in order."""
        return [*self._forgotten.calls, *self.in_flight]

    def newest_first(self) -> Iterator[Call[Any]]:
        """The same from its end, for who does not need to look at all of them."""
        return chain(reversed(self.in_flight), reversed(self._forgotten.calls))

    def send(self, call: Call[Any], packed: bytes) -> None:
        """Send it: at once if nothing is under way, else with the rest of this tick."""
        in_flight = self.in_flight
        if not in_flight:
            self.wire.write(packed)
        elif self._out:
            self._out.append(packed)
        else:
            self._out.append(packed)
            self.wire.wake()
        in_flight.append(call)

    def send_all(self, calls: Iterable[Call[Any]]) -> None:
        """Send them in one write."""
        self.flush()
        calls = tuple(calls)
        self.in_flight.extend(calls)
        self.wire.write(b"".join([call.packed() for call in calls]))

    def flush(self) -> None:
        """Write what was gathered in this tick."""
        out = self._out
        if out:
            data = b"".join(out) if len(out) > 1 else out[0]
            out.clear()
            self.wire.write(data)
            if self.wire.unsent() > MAX_UNSENT:
                self._listener.crowded()

    def received(self, data: bytes | memoryview) -> None:
        """Bytes came. Never raises."""
        # What a former primary grants, its successor grants to somebody else. The
        # keeper's thread may learn of the switch before the loop can hang up
        # (test_link.py).
        if self._current is not None and self.leave_former():
            return
        reader, in_flight = self._reader, self.in_flight
        gets = reader.gets
        try:
            reader.feed(data)  # type: ignore[arg-type]  # stub: bytes; takes any buffer
            while (reply := gets()) is not _MORE:
                kind = type(reply)  # pyright: ignore[reportUnknownVariableType]
                if kind is _Push:
                    self._pushed(reply)
                elif kind is _Error:
                    self._refused(in_flight.popleft(), str(reply))
                else:
                    call = in_flight.popleft()
                    if self._forgotten.calls:
                        if isinstance(call, BarrierCall):
                            self._forgotten.keep_behind(call)
                            continue
                        self._overtaken(call)
                    call.answered(reply)
        except (hiredis.ProtocolError, IndexError):  # IndexError: nobody asked
            self._end(not_redis(self._where))
            self.wire.abort()
            return
        if not in_flight:
            if self._forgotten.calls:
                self._reload()
            elif self._forgotten.whole:
                self._forgotten.clear()

    def lost(self, exc: BaseException | None) -> None:
        """The connection is gone; None: closed by the server."""
        self._end(from_failure(exc, self._where))

    def drop(self, error: BackendError) -> None:
        """Give it up."""
        self._end(error)
        self.wire.abort()

    def _refused(self, call: Call[Any], text: str) -> None:
        if isinstance(call, ShardUnsubscribeCall):  # its PING is still to be answered
            self.in_flight.appendleft(call)
            return
        first = not self._forgotten.calls
        if self._forgotten.keeps(call, text):
            if first:
                self._listener.holding()
            return
        if self._listener.refused(call, text):
            return
        call.refused(text, self._where)
        if text.startswith("READONLY"):  # what follows is refused as well
            self.wire.abort()

    def _pushed(self, push: list[Any]) -> None:
        verb = push[0]
        try:
            if verb in _MESSAGES:
                self._listener.heard(push[1], push[2])
            elif verb in _CONFIRMS and self._awaits(verb, push[1]):
                self.in_flight.popleft().answered(None)
            elif verb == b"sunsubscribe" and not self._leaves(push[1]):
                self._listener.unheard(push[1])
        except Exception:  # noqa: BLE001 - it is logged
            log_event(log, "callback failed", logging.ERROR, exc_info=True)

    def _awaits(self, verb: bytes, channel: bytes) -> bool:
        first = self.in_flight[0] if self.in_flight else None
        return isinstance(first, SubscribeCall) and first.is_confirmed_by(verb, channel)

    def _leaves(self, channel: bytes) -> bool:
        first = self.in_flight[0] if self.in_flight else None
        return isinstance(first, ShardUnsubscribeCall) and first.channel == channel

    def _overtaken(self, call: Call[Any]) -> None:
        if call.script is None:
            return
        for refused in self._forgotten.take_at(call.args[1]):
            refused.failed(
                BackendUnavailable(  # may be tried again, and waiters do
                    what=f"{self._where}: forgot our scripts; not carried out",
                    hint="a later command of ours was, so it cannot be repeated",
                    nothing_done=True,
                ),
            )
        if not self._forgotten.calls:
            self._listener.ready()

    def _reload(self) -> None:
        again = self._forgotten.take()
        loads = [script_load(script) for script in self._scripts]
        self.in_flight.extend(loads)
        self.in_flight.extend(again)
        self.wire.write(
            b"".join(
                [call.packed() for call in loads]
                + [call.packed_whole() for call in again]
            )
        )
        self._listener.ready()

    def _end(self, error: BackendError) -> None:
        if not self.alive:
            return
        self.alive = False
        waiting = [self.in_flight.pop() for _ in self._out]
        waiting.reverse()
        failed, unsent = self.under_way(), list[Call[Any]]()
        for call in waiting:  # what is heard is this connection's alone
            (failed if isinstance(call, SubscribeCall) else unsent).append(call)
        self._out.clear()
        self._forgotten.clear()
        self.in_flight.clear()
        self._listener.ended(error, unsent)
        for call in failed:  # a raised exception collects tracebacks: one each
            call.failed(copy(error))


def script_load(script: Script) -> Call[Any]:
    """The command that makes the server remember a script."""
    return Call(as_is, ("SCRIPT", "LOAD", script.text))
