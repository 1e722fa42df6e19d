"""Which channels are heard, over however many connections."""

from __future__ import annotations

from collections.abc import Iterable

from aiorwlock_remote.backends.redis.connection.calls import SubscribeCall


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
