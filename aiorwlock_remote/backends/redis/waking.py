"""Who is to be woken: messages of our scripts, and keyspace events where they are on.

A script that lets somebody in publishes the seat's name to one channel, that of the
process whose turn it is. A foreign program publishes nothing; where the server has
keyspace notifications, the process at the head of the queue listens to the seat while a
foreigner sits in it. They are never switched on for that: it is the server's setting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiorwlock_remote.backends.redis.keys import resource_of
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import Bell

_DELETED = frozenset("gxA")


class Channels(Protocol):
    """The part of a connection that listens."""

    def subscribe(self, channel: bytes) -> None:
        """Listen to a channel from now on, over reconnects, too."""

    def unsubscribe(self, channel: bytes) -> None:
        """Not any more."""


class Waking:
    """Turns messages into rings of the bell. Lives in the loop's thread."""

    def __init__(self, prefix: str, db: int, bell: Bell) -> None:
        """``prefix`` and ``db`` are part of what we are told of."""
        self._prefix = prefix
        self._events = f"__keyspace@{db}__:".encode()
        self._bell = bell
        self._channels: Channels | None = None
        self._watched: set[Resource] = set()
        self._seats: dict[Resource, bytes] = {}  # listened to
        self._told: tuple[Resource, bytes] | None = None

    def listen_on(self, channels: Channels) -> None:
        """The server tells of changed keys, perhaps."""
        self._channels = channels

    def message(self, channel: bytes, payload: bytes) -> None:
        """Somebody told us something."""
        event = channel.startswith(self._events)
        seat = channel[len(self._events) :] if event else payload
        target = resource_of(self._prefix, seat)
        if target is not None:
            self._bell(target, 0.0)

    def watch(self, resource: Resource) -> None:
        """Somebody of this process has a place there."""
        self._watched.add(resource)
        if self._told is not None and self._told[0] == resource:
            self._listen(*self._told)

    def unwatch(self, resource: Resource) -> None:
        """Nobody has."""
        self._watched.discard(resource)
        seat = self._seats.pop(resource, None)
        if seat is not None and self._channels is not None:
            self._channels.unsubscribe(seat)

    def foreign(self, resource: Resource, seat: bytes) -> None:
        """We are at the head of the queue, and a foreigner sits there.

        If nobody watches the resource yet, it may be watched right after this.
        """
        self._told = resource, seat
        if resource in self._watched:
            self._listen(resource, seat)

    def _listen(self, resource: Resource, seat: bytes) -> None:
        self._told = None
        if self._channels is None or resource in self._seats:
            return
        self._seats[resource] = channel = self._events + seat
        self._channels.subscribe(channel)
        self._bell(resource, 0.0)  # it may have gone just before we listened

    def ring_all(self) -> None:
        """The connection was lost, and messages with it: all ask again."""
        for resource in list(self._watched):
            self._bell(resource, 0.0)


async def tells_of_keys(ask: Callable[..., Awaitable[Any]]) -> bool:
    """Whether the server has keyspace notifications; who may not know may hope."""
    try:
        found = await ask("CONFIG", "GET", "notify-keyspace-events")
    except BackendUnavailable:
        raise
    except BackendError:
        return True
    flags = "".join(value.decode() for value in dict(found).values())
    return "K" in flags and bool(_DELETED & set(flags))
