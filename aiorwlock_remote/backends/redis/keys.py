"""The names of a resource's keys, and of a process's channel.

The seat is the published mutex record. What belongs to it lies in the same slot of a
cluster, by the braces: ``{…}.state``, ``{…}.readers``, ``{…}.queue``.
"""

from __future__ import annotations

from typing import ClassVar

from aiorwlock_remote.backends.redis.scripts import (
    ENTER,
    LEAVE,
    LOOK,
    PAIR_ENTER,
    PAIR_LEAVE,
    PAIR_LOOK,
    Script,
)
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.names import Resource, from_key
from aiorwlock_remote.core.pair import READ_LOCK, WRITE_LOCK, Pair
from aiorwlock_remote.errors import ConfigurationError

SEAT = "mutex_locks/"
_PARTS = ("state", "readers", "queue")
_PAIR_PARTS = ("state", "expiry", "queue")


class Keys:
    """The keys of one resource, made once and used for every request.

    ``enter``, ``leave``, ``look``: the scripts for these keys. ``seats``: the published
    keys, which other programs change; ``seat`` is the one that messages name.
    """

    __slots__ = ("args", "resource", "seat", "seats")

    enter: ClassVar[Script] = ENTER
    leave: ClassVar[Script] = LEAVE
    look: ClassVar[Script] = LOOK

    def __init__(
        self, prefix: str, resource: Resource, fence_memory: float = 3600.0
    ) -> None:
        """``fence_memory``: seconds that a record is kept after its last use."""
        seat = f"{prefix}{SEAT}{resource.key}"
        self.resource: Resource = resource
        self.seat: bytes = seat.encode()
        beside = tuple(f"{{{seat}}}.{part}".encode() for part in _PARTS)
        # What every script begins with: how many keys, the keys, ARGV[1].
        memory = micros(fence_memory)
        self.args: tuple[int | bytes, ...] = (4, self.seat, *beside, memory)
        self.seats: tuple[bytes, ...] = (self.seat,)


class PairKeys(Keys):
    """The keys of a pair: the two published ones as they are, and ours beside them."""

    __slots__ = ()

    enter = PAIR_ENTER
    leave = PAIR_LEAVE
    look = PAIR_LOOK

    def __init__(
        self, prefix: str, resource: Resource, fence_memory: float = 3600.0
    ) -> None:
        """As ``Keys``."""
        names = f"{resource.type}:{resource.id}"
        self.resource = resource
        self.seat = f"{prefix}{WRITE_LOCK}{names}".encode()
        readers = f"{prefix}{READ_LOCK}{names}".encode()
        self.seats = (self.seat, readers)
        start = _beside(readers)
        beside = tuple(start + part.encode() for part in _PAIR_PARTS)
        memory = micros(fence_memory)
        self.args = (5, self.seat, *beside, readers, memory)

    def check_slot(self) -> None:
        """Refuse a pair that a cluster would keep in two slots.

        Raises:
            ConfigurationError: neither part of the name has a ``{tag}``.
        """
        if _tag(self.seat) is None:
            raise ConfigurationError(
                what=f"in a cluster {self.resource.label!r} would be two keys in "
                "different slots",
                hint="give the datatype or the id a {tag}: "
                f"'{{{self.resource.type}}}:{self.resource.id}'",
            )


def keys_of(prefix: str, resource: Resource, fence_memory: float) -> Keys:
    """The keys of a resource, whichever layout it has."""
    made = PairKeys if isinstance(resource, Pair) else Keys
    return made(prefix, resource, fence_memory)


def _tag(key: bytes) -> bytes | None:
    """What decides about a key's slot in a cluster, if not all of it does."""
    _, brace, rest = key.partition(b"{")
    tag, end, _ = rest.partition(b"}")
    return tag if brace and end and tag else None


def _beside(key: bytes) -> bytes:
    """What the names of keys begin with that are ours and lie in the slot of this one.

    Never what a published key begins with.
    """
    tag = _tag(key)
    return b"{%b}." % key if tag is None else b"{%b}.%b." % (tag, key)


def resource_of(prefix: str, name: bytes) -> Resource | None:
    """The resource a key belongs to, if it is one of ours under this prefix."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    if text.startswith("{"):
        text, brace, part = text[1:].rpartition("}.")
        if not brace or part not in _PARTS:
            return None
    if not text.startswith(prefix + SEAT):
        return None
    found = from_key(text[len(prefix) + len(SEAT) :])
    return found if found.type and found.id else None


def scan_pattern(prefix: str, resource_type: str | None) -> str:
    """A glob that every key of these resources matches (and others may)."""
    start = _literal(prefix + SEAT)
    return (
        f"*{start}*"
        if resource_type is None
        else f"*{start}{_literal(resource_type)},*"
    )


def channel(prefix: str, gate: str) -> bytes:
    """Where a process hears that it may be its turn: the seat's key is sent."""
    return f"{prefix}rwlock.wake/{gate}".encode()


def _literal(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in text)
