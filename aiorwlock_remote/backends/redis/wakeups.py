"""Who is to be woken: messages of our scripts, and keyspace events where they are on.

A script that lets somebody in publishes the seat's name to one channel, that of the
process whose turn it is. A foreign program publishes nothing; where the server has
keyspace notifications, the process at the head of the queue listens to the seat while a
foreigner sits in it. They are never switched on for that: it is the server's setting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import WakeCallback

Seats = tuple[bytes, ...]
"""The published keys of one resource."""

KEY_REMOVED_EVENTS = frozenset("gxA")
"""The events that tell of keys deleted or expired, by their letters."""


class SubscribesToChannels(Protocol):
    """The part of a connection that listens."""

    def subscribe(self, channel: bytes) -> None:
        """Listen to a channel from now on, over reconnects, too."""

    def unsubscribe(self, channel: bytes) -> None:
        """Not any more."""


class WakeupDispatcher:
    """Turns messages into rings of the bell. Lives in the loop's thread."""

    def __init__(self, db: int, bell: WakeCallback) -> None:
        """``db``: the number is part of what the server tells."""
        self._events = f"__keyspace@{db}__:".encode()
        self._bell = bell
        self._channels: SubscribesToChannels | None = None
        self._watched: dict[bytes, Resource] = {}  # by the names of the seats
        self._events_of: dict[bytes, bytes] = {}  # the channel of a seat listened to
        self._told: Seats | None = None  # the seats in which a foreigner sits

    def listen_on(self, channels: SubscribesToChannels) -> None:
        """The server tells of changed keys, perhaps."""
        self._channels = channels

    def message(self, channel: bytes, payload: bytes) -> None:
        """Somebody told us something."""
        event = channel.startswith(self._events)
        seat = channel[len(self._events) :] if event else payload
        resource = self._watched.get(seat)
        if resource is not None:
            self._bell(resource, 0.0)

    def watch(self, resource: Resource, seats: Seats) -> None:
        """Somebody of this process has a place there."""
        for seat in seats:
            self._watched[seat] = resource
        if self._told == seats:
            self._listen(seats)

    def unwatch(self, seats: Seats) -> None:
        """Nobody has."""
        for seat in seats:
            self._watched.pop(seat, None)
            channel = self._events_of.pop(seat, None)
            if channel is not None and self._channels is not None:
                self._channels.unsubscribe(channel)

    def foreign(self, seats: Seats) -> None:
        """We are at the head of the queue, and a foreigner sits there.

        If nobody watches the resource yet, it may be watched right after this.
        """
        self._told = seats
        if seats[0] in self._watched:
            self._listen(seats)

    def wake_all(self) -> None:
        """The connection was lost, and messages with it: all ask again."""
        for resource in set(self._watched.values()):
            self._bell(resource, 0.0)

    def _listen(self, seats: Seats) -> None:
        self._told = None
        if self._channels is None or seats[0] in self._events_of:
            return
        for seat in seats:
            self._events_of[seat] = channel = self._events + seat
            self._channels.subscribe(channel)
        # It may have gone just before we listened.
        self._bell(self._watched[seats[0]], 0.0)


async def keyspace_events(ask: Callable[..., Awaitable[Any]]) -> frozenset[str] | None:
    """Which keyspace notifications the server has; None if we may not know.

    Letters of ``notify-keyspace-events``, none of them without ``K``.
    """
    try:
        found = await ask("CONFIG", "GET", "notify-keyspace-events")
    except BackendUnavailable:
        raise
    except BackendError:
        return None
    flags = frozenset("".join(value.decode() for value in dict(found).values()))
    return flags if "K" in flags else frozenset()
