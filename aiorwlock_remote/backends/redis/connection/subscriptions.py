"""Which channels are heard, over however many connections."""

from __future__ import annotations

from aiorwlock_remote.backends.redis.connection.calls import Subscribing


class Subscriptions:
    """The channels, and what has to be said so that the server knows them."""

    def __init__(self) -> None:
        """None."""
        self._channels: dict[bytes, None] = {}  # a set that keeps its order
        self._greeted: tuple[bytes, ...] = ()

    def add(self, channel: bytes) -> list[Subscribing]:
        """Hear it; what to say for that."""
        if channel in self._channels:
            return []
        self._channels[channel] = None
        return [Subscribing("SUBSCRIBE", channel)]

    def remove(self, channel: bytes) -> list[Subscribing]:
        """Hear it no more; what to say for that."""
        if channel not in self._channels:
            return []
        del self._channels[channel]
        return [Subscribing("UNSUBSCRIBE", channel)]

    def greet(self) -> tuple[bytes, ...]:
        """The channels a new connection is greeted with."""
        self._greeted = tuple(self._channels)
        return self._greeted

    def changed(self) -> list[Subscribing]:
        """What to say about changes since the greeting."""
        greeted = dict.fromkeys(self._greeted)
        new = [c for c in self._channels if c not in greeted]
        old = [c for c in greeted if c not in self._channels]
        return [
            *(Subscribing("SUBSCRIBE", channel) for channel in new),
            *(Subscribing("UNSUBSCRIBE", channel) for channel in old),
        ]
