"""RESP3 on one connection, without I/O or clock: calls, replies, pushes in order."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from hashlib import sha1
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import hiredis

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.errors import (
    from_decoding,
    from_failure,
    from_reply,
    not_redis,
)
from aiorwlock_remote.backends.redis.hiredis_reader import (
    MORE,
    PARSE_FAILURES,
    Push,
    new_reader,
)
from aiorwlock_remote.backends.redis.log import log, log_debug
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.logs import log_event

T = TypeVar("T")

Arg = bytes | str | int

SendCommand = Callable[..., Pending[Any]]
"""Sends one command and returns its pending reply: ``send("CONFIG", "GET",
"save")``."""

Raw: TypeAlias = Any
"""A reply as hiredis has parsed it; its shape is unknown until it is decoded."""

# hiredis's own stub takes the argument for a 1-tuple.
pack: Callable[[tuple[Arg, ...]], bytes] = cast(
    "Callable[[tuple[Arg, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)

READ_SIZE = 65_536
"""Maximum bytes of one read."""
MAX_UNSENT = 64 * 2**20
"""Bytes that may wait in the transport's buffer before new calls are refused."""
FORMER_PRIMARY = "another server is the primary now"
REDIRECTIONS: frozenset[str] = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
"""First words of the errors with which a cluster node refuses a call for its slot."""

_MESSAGES = {b"message", b"smessage"}
_Error = hiredis.ReplyError


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, sent as EVALSHA; as text only if the server has forgotten it.

    ``waits``: whether the script may create a queue entry. If so, its client must be
    subscribed to the wake-up channel before the script runs.
    """

    name: str
    text: str = field(repr=False)
    waits: bool = True
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


Request = tuple[Script, tuple[Arg, ...]]
"""A script and what follows its SHA: the number of keys, the keys, the arguments."""

Plain = tuple[None, tuple[Arg, ...]]
"""A command that runs no script."""


def as_is(raw: T) -> T:
    """Return the reply unchanged: the decoder of commands that need none."""
    return raw


class Call(Pending[T]):
    """One command, what is needed to send it (again), and its pending reply.

    Args:
        decode: Turns the parsed reply into the result. What it raises, awaiting raises.
        args: The command; with a ``script``, what follows EVALSHA and the SHA, so that
            ``args[1]`` is the first key.
        script: The script to run, if the call runs one.
        must_go: True for releases and withdrawals: never refused because of
            back-pressure, and still sent up to 30 s after the caller got an error.
    """

    __slots__ = ("args", "decode", "must_go", "queued_at", "script")

    def __init__(
        self,
        decode: Callable[[Any], T],
        args: tuple[Arg, ...],
        script: Script | None = None,
        must_go: bool = False,  # noqa: FBT001, FBT002 - positional: the hot path
    ) -> None:
        # Pending's own fields: this is the hot path, and one call of its __init__ is
        # saved for every request.
        self._done = False
        self._value = None
        self.error: BaseException | None = None
        self._callbacks = None
        self._future = None
        self.decode: Callable[[Any], T] = decode
        self.args: tuple[Arg, ...] = args
        self.script: Script | None = script
        self.must_go: bool = must_go
        self.queued_at: float = 0.0
        """Loop time at which the call was first queued unsent; 0.0 if it never was."""

    def answered(self, reply: object) -> None:
        """Decode the reply and set the result, unless the call has already failed."""
        if self._done:
            # A ``must_go`` call fails when its caller's patience ends and may be sent
            # and answered after that (test_a_reply_after_the_failure_changes_nothing).
            return
        try:
            value = self.decode(reply)
        except Exception as exc:  # noqa: BLE001 - awaiting the call raises it
            self.failed(from_decoding(exc, self.name))
            return
        try:
            self.set_result(value)
        except Exception:  # noqa: BLE001 - a callback's; it is logged
            log_event(log, "callback_failed", logging.ERROR, exc_info=True)

    def refused(self, text: str, where: str) -> None:
        """Fail with the exception for an error reply of the server ``where``."""
        self.failed(from_reply(text, where))

    def failed(self, error: Exception) -> None:
        """Set the exception, unless a result or an exception is set already."""
        if self._done:
            return
        try:
            self.set_exception(error)
        except Exception:  # noqa: BLE001 - a callback's; it is logged
            log_event(log, "callback_failed", logging.ERROR, exc_info=True)

    @property
    def name(self) -> str:
        return str(self.args[0]) if self.script is None else self.script.name

    def packed(self) -> bytes:
        if self.script is None:
            return pack(self.args)
        return pack(("EVALSHA", self.script.sha, *self.args))

    def packed_with_text(self) -> bytes:
        """Return the bytes of an EVAL, which works if the server forgot the script."""
        if self.script is None:
            return self.packed()
        return pack(("EVAL", self.script.text, *self.args))


class SubscribeCall(Call[None]):
    """A (un)subscription, which the server confirms by a push, not by a reply."""

    __slots__ = ("confirmation",)

    def __init__(self, verb: str, channel: bytes) -> None:
        """``verb``: SUBSCRIBE, UNSUBSCRIBE or, for a channel of a slot, SSUBSCRIBE."""
        super().__init__(as_is, (verb, channel))
        self.confirmation: list[bytes] = [verb.lower().encode(), channel]
        """First items of the push that answers the call."""


class ShardUnsubscribeCall(Call[None]):
    """SUNSUBSCRIBE followed by a PING, whose reply is the reply of the call.

    A node that gives the slot away ends the subscription itself and replies MOVED to
    our SUNSUBSCRIBE, so the first push or error does not show whether more will follow.
    Everything before the PING's reply belongs to this call (test_protocol.py).
    """

    __slots__ = ("channel",)

    def __init__(self, channel: bytes) -> None:
        super().__init__(_discard, ("SUNSUBSCRIBE", channel))
        self.channel: bytes = channel

    def packed(self) -> bytes:
        return pack(self.args) + pack(("PING",))


class BarrierCall(Call[None]):
    """A PING that is answered after all calls that were sent before it.

    If the server forgot a script, the calls refused for that are sent again, and then
    the barrier (``NoScriptRetries.keep_behind``).
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_discard, ("PING",), must_go=True)


class KeyedCall(Call[Any]):
    """A command that a cluster client sends to the node of its key, ``args[1]``."""

    __slots__ = ()


def _discard(_: object) -> None:
    return None


class Transport(Protocol):
    """Interface: the sending half of a connection. No method raises."""

    def write(self, data: bytes) -> None:
        """Send ``data`` after all that was written before, as soon as possible."""

    def wake(self) -> None:
        """Call ``RespProtocol.flush`` at the end of the event loop's present turn."""

    def unsent(self) -> int:
        """Return the number of bytes that still wait to be sent."""

    def abort(self) -> None:
        """Close at once; ``RespProtocol.lost`` is called soon afterwards."""

    async def aclose(self) -> None:
        """Close at once and wait until all tasks and sockets of the transport ended."""


class ProtocolHandler:
    """Base of the owners of a ``RespProtocol``: methods that handle its events.

    They do nothing unless overridden, and are called in the loop of the transport.
    """

    def message_received(self, channel: bytes, payload: bytes) -> None:
        """Handle a message that was published on ``channel``."""

    def slot_unsubscribed(self, channel: bytes) -> None:
        """Handle the end of a subscription: the node gave the channel's slot away."""

    def redirected(self, call: Call[Any], text: str) -> bool:  # noqa: ARG002 - overridden in clusters
        """Return True to take over a call that was refused with the error ``text``.

        The handler must send the call elsewhere; until then the call is unanswered.
        """
        return False

    def scripts_lost(self) -> None:
        """Stop sending until ``ready`` is called: the server has forgotten scripts."""

    def ready(self) -> None:
        """Resume sending: new calls need not be held back any more."""

    def buffer_full(self) -> None:
        """Handle a full buffer: more than ``MAX_UNSENT`` bytes wait to be sent."""

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        """Handle the loss of the connection; ``unsent`` were certainly not sent.

        ``unsent`` contains no subscriptions: the next connection makes its own.
        """


class RespProtocol:
    """State of one connection: the calls that were sent and are not yet answered.

    Invariants:

    * Replies resolve calls in the order they were sent. A push takes no place in that
      order, except the confirmation of a subscription (test_protocol.py:
      ``test_pushes_of_other_kinds_take_nobodys_answer``).
    * When the connection is lost, each call either fails (if written: it may have been
      carried out) or is handed back as unsent, never both
      (``test_lost_what_was_written_fails_what_was_not_is_given_back``).
    * After NOSCRIPT (the server forgot a script), the refused calls are sent again, in
      their order, before any new call (test_noscript.py).
    * A refused call is not sent again if a later call with its key was carried out: the
      repetition could undo the later call
      (``test_an_overtaken_call_is_not_run_again``).
    * Replies of a former primary are discarded (test_primary_finder.py:
      ``test_a_grant_of_a_former_primary_is_not_believed``).
    """

    __slots__ = (
        *("_buffer", "_handler", "_is_current", "_no_script", "_reader", "_scripts"),
        *("_unflushed", "_where", "alive", "in_flight", "transport"),
    )

    def __init__(
        self,
        where: str,
        scripts: Sequence[Script],
        handler: ProtocolHandler,
        is_current: Callable[[], bool] | None = None,
    ) -> None:
        """Create the protocol; the caller has to set ``transport``.

        ``where`` names the server in messages. ``scripts`` are loaded again if the
        server forgets them. ``handler`` gets the events. ``is_current()`` is True while
        the server is still the primary (None: always).
        """
        self._is_current = is_current
        self._where = where
        self._scripts = scripts
        self._handler = handler
        self._reader = new_reader()
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._unflushed: list[bytes] = []
        self._no_script = NoScriptRetries()
        self.in_flight: deque[Call[Any]] = deque()
        self.alive: bool = True
        self.transport: Transport

    def leave_former_primary(self) -> bool:
        """Drop the connection and return True if its server is not the primary now."""
        if self._is_current is None or self._is_current():
            return False
        self.drop(BackendUnavailable(what=f"{self._where}: {FORMER_PRIMARY}"))
        return True

    def unanswered(self) -> list[Call[Any]]:
        """Return the calls that were sent and not answered, oldest first."""
        return [*self._no_script.calls, *self.in_flight]

    def newest_first(self) -> Iterator[Call[Any]]:
        return chain(reversed(self.in_flight), reversed(self._no_script.calls))

    def send(self, call: Call[Any], packed: bytes) -> None:
        """Send ``call``, encoded as ``packed``, after all that were sent before.

        At once if no call is in flight, else with others when the loop's turn ends.
        """
        # The first call of a tick would only lose time if it waited for others. Those
        # that follow leave in one write (test_a_tick_leaves_in_one_write_and_in_order).
        in_flight = self.in_flight
        if not in_flight:
            self.transport.write(packed)
        elif self._unflushed:
            self._unflushed.append(packed)
        else:
            self._unflushed.append(packed)
            self.transport.wake()
        in_flight.append(call)

    def send_all(self, calls: Iterable[Call[Any]]) -> None:
        """Send calls in one write, after all that were sent before."""
        self.flush()
        calls = tuple(calls)
        self.in_flight.extend(calls)
        self.transport.write(b"".join([call.packed() for call in calls]))

    def flush(self) -> None:
        """Write the calls that ``send`` has gathered in this turn of the loop."""
        unflushed = self._unflushed
        if unflushed:
            data = b"".join(unflushed) if len(unflushed) > 1 else unflushed[0]
            unflushed.clear()
            self.transport.write(data)
            if self.transport.unsent() > MAX_UNSENT:
                self._handler.buffer_full()

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return the buffer into which the transport has to read next."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what the transport has read: the buffer's first ``nbytes`` bytes."""
        self.received(self._buffer[:nbytes])

    def received(self, data: bytes | memoryview) -> None:
        """Parse ``data`` and resolve the calls that it answers. Never raises."""
        # What a former primary grants, its successor grants to another client as well.
        # The keeper's thread may learn of the failover before the loop can hang up.
        if self._is_current is not None and self.leave_former_primary():
            return
        reader, in_flight, unflushed = self._reader, self.in_flight, self._unflushed
        gets = reader.gets
        if unflushed:
            self.flush()
        try:
            reader.feed(data)  # type: ignore[arg-type]  # stub: bytes; takes any buffer
            while (reply := gets()) is not MORE:
                kind = type(reply)  # pyright: ignore[reportUnknownVariableType]
                if kind is Push:
                    self._pushed(reply)
                elif unflushed and len(in_flight) <= len(unflushed):
                    # It is of no call: what is left was made by a callback just now
                    # (test_a_reply_to_a_call_that_was_not_sent_answers_nothing).
                    self.drop(not_redis(self._where))
                    return
                elif kind is _Error:
                    self._refused(in_flight.popleft(), str(reply))
                else:
                    call = in_flight.popleft()
                    if not (self._no_script.calls and self._is_kept_behind(call)):
                        call.answered(reply)
        except (*PARSE_FAILURES, IndexError):  # IndexError: a reply to no call
            self.drop(not_redis(self._where))
            return
        if not in_flight:
            if self._no_script.calls:
                self._reload()
            elif self._no_script.resent:
                self._no_script.clear()

    def lost(self, exc: BaseException | None) -> None:
        """End the protocol. ``exc``: the transport's error; None: the server closed."""
        self._end(from_failure(exc, self._where))

    def drop(self, error: BackendError) -> None:
        """Fail the calls in flight with ``error``, and close the connection."""
        self._end(error)
        self.transport.abort()

    def _refused(self, call: Call[Any], text: str) -> None:
        if isinstance(call, ShardUnsubscribeCall):  # its PING is still to be answered
            self.in_flight.appendleft(call)
            return
        first = not self._no_script.calls
        if self._no_script.keeps(call, text):
            if first:
                self._handler.scripts_lost()
            return
        if self._handler.redirected(call, text):
            return
        call.refused(text, self._where)
        if text.startswith("READONLY"):
            # The server became a replica and refuses what follows as well. A new
            # connection may find the new primary (test_readonly_hangs_up).
            self.transport.abort()

    def _pushed(self, push: list[Any]) -> None:
        verb, first = push[0], None
        if len(self.in_flight) > len(self._unflushed):  # it was sent
            first = self.in_flight[0]
        try:
            if verb in _MESSAGES:
                self._handler.message_received(push[1], push[2])
            elif isinstance(first, SubscribeCall) and first.confirmation == push[:2]:
                self.in_flight.popleft().answered(None)
            elif verb == b"sunsubscribe" and not (
                isinstance(first, ShardUnsubscribeCall) and first.channel == push[1]
            ):
                self._handler.slot_unsubscribed(push[1])
        except Exception:  # noqa: BLE001 - a callback's; it is logged
            log_event(log, "callback_failed", logging.ERROR, exc_info=True)

    def _is_kept_behind(self, call: Call[Any]) -> bool:
        # Calls sent before the barrier are still to be carried out.
        if isinstance(call, BarrierCall):
            self._no_script.keep_behind(call)
            return True
        self._fail_overtaken(call)
        return False

    def _fail_overtaken(self, call: Call[Any]) -> None:
        if call.script is None:
            return
        # Another client has loaded the scripts again between the refused call and this
        # one, which was therefore carried out first.
        for refused in self._no_script.take_at(call.args[1]):
            refused.failed(
                BackendUnavailable(
                    what=f"{self._where}: forgot our scripts; not carried out",
                    hint="a later command of ours was, so it cannot be repeated",
                    nothing_done=True,
                )
            )
        if not self._no_script.calls:
            self._handler.ready()

    def _reload(self) -> None:
        again = self._no_script.take()
        loads = [script_load(script) for script in self._scripts]
        log_debug("scripts_reloaded", server=self._where, calls=len(again))
        self.in_flight.extend(loads)
        self.in_flight.extend(again)
        # As EVAL: the scripts may be flushed again before the calls arrive.
        packed = [call.packed() for call in loads]
        packed += [call.packed_with_text() for call in again]
        self.transport.write(b"".join(packed))
        self._handler.ready()

    def _end(self, error: BackendError) -> None:
        if not self.alive:
            return
        self.alive = False
        # What was gathered in this tick was certainly not sent. All else may have been
        # carried out, even if it was written a moment ago.
        unwritten = [self.in_flight.pop() for _ in self._unflushed]
        unwritten.reverse()
        failed, unsent = self.unanswered(), list[Call[Any]]()
        for call in unwritten:
            # A subscription belongs to this connection: sent on the next one, it would
            # ask twice for its channel (test_lost_connection.py).
            (failed if isinstance(call, SubscribeCall) else unsent).append(call)
        self._unflushed.clear()
        self._no_script.clear()
        self.in_flight.clear()
        self._handler.connection_lost(error, unsent)
        for call in failed:
            # An exception collects the traceback of everyone who raises it, so each
            # call gets a copy (test_each_lost_call_has_an_error_of_its_own).
            call.failed(copy(error))


class NoScriptRetries:
    """The calls refused with NOSCRIPT, kept until everything in flight is answered.

    ``calls`` are in the order of their replies. ``resent`` are those that were sent
    again, as text, and may still be unanswered.
    """

    __slots__ = ("_by_key", "calls", "resent")

    def __init__(self) -> None:
        self.calls: dict[Call[Any], None] = {}  # a set that keeps its order
        self._by_key: defaultdict[Arg, list[Call[Any]]] = defaultdict(list)
        self.resent: frozenset[Call[Any]] = frozenset()

    def keeps(self, call: Call[Any], text: str) -> bool:
        """Keep ``call`` if its error ``text`` demands a resend; return True if kept."""
        if call.script is None:
            return False
        key, verb = call.args[1], text.partition(" ")[0]
        if verb == "NOSCRIPT":
            # Refused though its text was sent: a server that never learns a script
            # would be asked for ever (test_a_server_that_never_learns_a_script).
            if call in self.resent:
                return False
        # Any other error is an answer (test_any_other_error_of_a_script_is_an_answer).
        # But a redirected call is kept behind one with the same key: sent elsewhere by
        # itself, it could pass the other (test_cluster_cases.py:
        # test_a_call_behind_one_whose_script_was_forgotten_does_not_pass_it).
        elif verb not in REDIRECTIONS or key not in self._by_key:
            return False
        self.calls[call] = None
        self._by_key[key].append(call)
        return True

    def keep_behind(self, barrier: BarrierCall) -> None:
        """Keep ``barrier``, a PING, to be sent again after all other kept calls."""
        self.calls[barrier] = None

    def take_at(self, key: Arg) -> list[Call[Any]]:
        taken = self._by_key.pop(key, [])
        for call in taken:
            del self.calls[call]
        return taken

    def take(self) -> list[Call[Any]]:
        """Remove and return the kept calls, which are about to be sent as text."""
        again = list(self.calls)
        self.clear()
        self.resent = frozenset(again)
        return again

    def clear(self) -> None:
        self.calls.clear()
        self._by_key.clear()
        self.resent = frozenset()


def script_load(script: Script) -> Call[Any]:
    """Return the call (SCRIPT LOAD) that makes the server remember a script."""
    return Call(as_is, ("SCRIPT", "LOAD", script.text))
