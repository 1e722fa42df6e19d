"""Scripts, and commands with their replies: the one object that every request costs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, TypeAlias, TypeVar, cast

import hiredis

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.errors import from_decoding, from_reply
from aiorwlock_remote.logs import log_event

T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")

Arg = bytes | str | int

SendCommand = Callable[..., Pending[Any]]
"""Sends one command: ``send("CONFIG", "GET", "save")``."""

Raw: TypeAlias = Any
"""A reply as hiredis parsed it; its shape is unknown until it is decoded."""

# hiredis's own stub takes the argument for a 1-tuple.
pack: Callable[[tuple[Arg, ...]], bytes] = cast(
    "Callable[[tuple[Arg, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, sent as EVALSHA; as text only if the server has forgotten it.

    ``waits``: the script may create a queue entry, so its client must be subscribed to
    the wake-up channel before the script runs (see ``SlotRouter``).
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


def as_is(raw: T) -> T:
    """Return the reply unchanged: the decoder of commands that need none."""
    return raw


class Call(Pending[T]):
    """One command, what is needed to send it (again), and its pending reply.

    Args:
        decode: Turns the parsed reply into the result; what it raises, awaiting raises.
        args: The command; with a ``script``, what follows EVALSHA and the SHA, so that
            ``args[1]`` is the first key.
        script: The script to run, if the call runs one.
        must_go: Never refused because of back-pressure, and still sent for 30 s after
            the caller was told that it failed (releases and withdrawals).
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
        self._error = None
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
            # and answered after that (test_lost.py).
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
        """Fail with the error that the server ``where`` replied."""
        self.failed(from_reply(text, where))

    def failed(self, error: Exception) -> None:
        """Set the exception, unless there is a result or an exception already."""
        if self._done:
            return
        try:
            self.set_exception(error)
        except Exception:  # noqa: BLE001 - a callback's; it is logged
            log_event(log, "callback_failed", logging.ERROR, exc_info=True)

    @property
    def name(self) -> str:
        """The command or the script, for messages."""
        return str(self.args[0]) if self.script is None else self.script.name

    def packed(self) -> bytes:
        """Return the command in the wire format."""
        if self.script is None:
            return pack(self.args)
        return pack(("EVALSHA", self.script.sha, *self.args))

    def packed_with_text(self) -> bytes:
        """Return the command as EVAL, which works if the server forgot the script."""
        assert self.script is not None
        return pack(("EVAL", self.script.text, *self.args))


class SubscribeCall(Call[None]):
    """A (un)subscription, confirmed by a push in the place of a reply."""

    __slots__ = ("_confirmed",)

    def __init__(self, verb: str, channel: bytes) -> None:
        """``verb``: SUBSCRIBE, UNSUBSCRIBE or SSUBSCRIBE (a channel of a slot)."""
        super().__init__(as_is, (verb, channel))
        self._confirmed: tuple[bytes, bytes] = verb.lower().encode(), channel

    def is_confirmed_by(self, verb: bytes, channel: bytes) -> bool:
        """Whether a push with this verb and channel answers the call."""
        return self._confirmed == (verb, channel)


class ShardUnsubscribeCall(Call[None]):
    """SUNSUBSCRIBE with a PING behind it, whose reply is the reply of the call.

    A node that gives the slot away ends the subscription by itself and replies MOVED to
    our SUNSUBSCRIBE, so the first push or error does not show whether more is to come.
    Everything before the PING's reply belongs to this call (test_protocol.py).
    """

    __slots__ = ("channel",)

    def __init__(self, channel: bytes) -> None:
        super().__init__(_discard, ("SUNSUBSCRIBE", channel))
        self.channel: bytes = channel

    def packed(self) -> bytes:
        return pack(self.args) + pack(("PING",))


class BarrierCall(Call[None]):
    """A PING that is answered after everything that was sent before it.

    If the server forgot a script, the calls that were refused for it are sent again,
    and the barrier behind them (``NoScriptRetries.keep_behind``).
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_discard, ("PING",), must_go=True)

    def packed_with_text(self) -> bytes:
        return self.packed()


class KeyedCall(Call[Any]):
    """A command for the node of the key ``args[1]``, redirected as scripts are."""

    __slots__ = ()


def _discard(_: object) -> None:
    return None
