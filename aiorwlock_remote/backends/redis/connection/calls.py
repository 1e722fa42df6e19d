"""A command and its answer on the way: the one object every request costs.

A Lua script, as a connection sends it: by its hash, its text only if asked for.
"""

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

Arg = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A script: ``sha`` is how the server names it.

    ``waits``: whether it may give a place, whose owner is told of its turn.
    """

    name: str
    text: str = field(repr=False)
    waits: bool = True
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        """Named by what it says."""
        digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


Request = tuple[Script, tuple[Arg, ...]]
"""A script, and what follows its hash: the number of keys, the keys, the arguments."""


T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiorwlock_remote.redis")

SendCommand = Callable[..., Pending[Any]]
"""Sends a command: ``ask("CONFIG", "GET", "save")``."""

Raw: TypeAlias = Any
"""What the server said, as hiredis gives it: any shape, until it is decoded."""

# hiredis's own stub takes it for a function of a 1-tuple.
pack: Callable[[tuple[Arg, ...]], bytes] = cast(
    "Callable[[tuple[Arg, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)


def as_is(raw: T) -> T:
    """The answer of a command that needs no decoding."""
    return raw


class Call(Pending[T]):
    """The answer to one command, and what it takes to send it (again).

    ``args`` follow EVALSHA and the hash if there is a ``script``; its first key is
    ``args[1]``. ``since``: when it was put aside unsent.
    """

    __slots__ = ("args", "decode", "must_go", "script", "since")

    def __init__(
        self,
        decode: Callable[[Any], T],
        args: tuple[Arg, ...],
        script: Script | None = None,
        must_go: bool = False,  # noqa: FBT001, FBT002 - positional: the hot path
    ) -> None:
        """A command that has not been answered."""
        # Pending's own fields, without the cost of calling its __init__.
        self._done = False
        self._value = None
        self._error = None
        self._callbacks = None
        self._future = None
        self.decode: Callable[[Any], T] = decode
        self.args: tuple[Arg, ...] = args
        self.script: Script | None = script
        self.must_go: bool = must_go
        self.since: float = 0.0

    def answered(self, reply: object) -> None:
        """The answer came; nobody waits for it if it took too long to be sent."""
        if self._done:
            return
        try:
            value = self.decode(reply)
        except Exception as exc:  # noqa: BLE001 - raised by whoever awaits the answer
            self.failed(from_decoding(exc, self.name))
            return
        try:
            self.set_result(value)
        except Exception:  # noqa: BLE001 - it is logged
            log_event(log, "callback failed", logging.ERROR, exc_info=True)

    def refused(self, text: str, where: str) -> None:
        """The answer is an error."""
        self.failed(from_reply(text, where))

    def failed(self, error: Exception) -> None:
        """No answer will come; what callbacks raise goes to the log, as above."""
        if self._done:
            return
        try:
            self.set_exception(error)
        except Exception:  # noqa: BLE001 - it is logged
            log_event(log, "callback failed", logging.ERROR, exc_info=True)

    @property
    def name(self) -> str:
        """What it asks for, for messages."""
        return str(self.args[0]) if self.script is None else self.script.name

    def packed(self) -> bytes:
        """The command as bytes."""
        if self.script is None:
            return pack(self.args)
        return pack(("EVALSHA", self.script.sha, *self.args))

    def packed_whole(self) -> bytes:
        """The same with the script's text, which needs no script at the server."""
        assert self.script is not None
        return pack(("EVAL", self.script.text, *self.args))


class SubscribeCall(Call[None]):
    """A subscription or its end: answered by a push, or by an error as other calls."""

    __slots__ = ("_confirmed",)

    def __init__(self, verb: str, channel: bytes) -> None:
        """``verb``: SUBSCRIBE, SSUBSCRIBE (a channel of a slot), or an end of these."""
        super().__init__(as_is, (verb, channel))
        self._confirmed: tuple[bytes, bytes] = verb.lower().encode(), channel

    def is_confirmed_by(self, verb: bytes, channel: bytes) -> bool:
        """Whether a push of this verb is the answer."""
        return self._confirmed == (verb, channel)


class ShardUnsubscribeCall(Call[None]):
    """The end of hearing a channel of a slot, with a PING behind it.

    A server that gives the slot away tells the end by itself, and answers ours with
    MOVED: by what comes first nobody can tell whether more is to come. So the answer is
    the PING's, and whatever comes before it belongs to this.
    """

    __slots__ = ("channel",)

    def __init__(self, channel: bytes) -> None:
        """Not sent."""
        super().__init__(_nothing, ("SUNSUBSCRIBE", channel))
        self.channel: bytes = channel

    def packed(self) -> bytes:
        """Both commands."""
        return pack(self.args) + pack(("PING",))


class BarrierCall(Call[None]):
    """Answered when all that was sent before it is answered, or sent and answered
    again: a script that the server forgot is carried out the second time.
    """

    __slots__ = ()

    def __init__(self) -> None:
        """Not sent."""
        super().__init__(_nothing, ("PING",), must_go=True)

    def packed_whole(self) -> bytes:
        """There is no script to it."""
        return self.packed()


class KeyedCall(Call[Any]):
    """A command for the node that has the key ``args[1]``, sent on as scripts are."""

    __slots__ = ()


def _nothing(_: object) -> None:
    return None
