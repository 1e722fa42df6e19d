"""Wakes waiting tasks, by messages of our scripts and by keyspace events if enabled."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.log import log, log_debug
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import WakeCallback

PublishedKeys = tuple[bytes, ...]
"""Those keys of one resource that other programs use, too."""

KEY_REMOVED_EVENTS = frozenset("gxA")
"""Letters of ``notify-keyspace-events`` for keys that were deleted or expired."""


class WakeupDispatcher:
    """Wakes the waiters of the resource that a received message or event is about.

    For use in the loop's thread only.
    """

    def __init__(self, db: int, wake: WakeCallback) -> None:
        # Of the channels of keyspace events, which contain the database's number.
        self._prefix = f"__keyspace@{db}__:".encode()
        self._wake = wake
        self._endpoint: Endpoint | None = None
        self._watched: dict[bytes, Resource] = {}  # by their published keys
        self._channels: dict[bytes, bytes] = {}  # of subscribed keys
        self._foreign: PublishedKeys | None = None

    def listen_on(self, endpoint: Endpoint) -> None:
        """Use ``endpoint`` to subscribe to keyspace events, each when it is needed."""
        self._endpoint = endpoint

    def message(self, channel: bytes, payload: bytes) -> None:
        """Wake the waiters of the watched resource that a message or event is about."""
        is_event = channel.startswith(self._prefix)
        key = channel[len(self._prefix) :] if is_event else payload
        resource = self._watched.get(key)
        if resource is not None:
            if log.isEnabledFor(logging.DEBUG):
                kind = "keyspace_event" if is_event else "message"
                log_debug("wakeup_received", resource=resource.label, kind=kind)
            self._wake(resource, 0.0)

    def watch(self, resource: Resource, keys: PublishedKeys) -> None:
        """Wake waiters of ``resource`` at events about ``keys``, until ``unwatch``."""
        for key in keys:
            self._watched[key] = resource
        # The reply with the foreign holder came before the waiter was registered.
        if self._foreign == keys:
            self._subscribe(keys)

    def unwatch(self, keys: PublishedKeys) -> None:
        """Stop waking waiters at events about ``keys``, and unsubscribe from these."""
        for key in keys:
            self._watched.pop(key, None)
            channel = self._channels.pop(key, None)
            if channel is not None and self._endpoint is not None:
                self._endpoint.unsubscribe(channel)

    def foreign_holder(self, keys: PublishedKeys) -> None:
        """Subscribe to events of ``keys``: another program has them, we are next."""
        # Our scripts publish the key to the channel of the client that is next. Another
        # program publishes nothing, so its release is seen at the next poll, unless the
        # server has keyspace notifications. They are never switched on for that: they
        # are the server's setting.
        self._foreign = keys
        if keys[0] in self._watched:
            self._subscribe(keys)

    def wake_all(self) -> None:
        for resource in set(self._watched.values()):
            self._wake(resource, 0.0)

    def _subscribe(self, keys: PublishedKeys) -> None:
        self._foreign = None
        if self._endpoint is None or keys[0] in self._channels:
            return
        resource = self._watched[keys[0]]
        if log.isEnabledFor(logging.DEBUG):
            log_debug("listener_subscribed", resource=resource.label)
        for key in keys:
            self._channels[key] = channel = self._prefix + key
            self._endpoint.subscribe(channel)
        # The foreign holder may have left before the subscription.
        self._wake(resource, 0.0)


async def keyspace_events(send: Callable[..., Awaitable[Any]]) -> frozenset[str] | None:
    """Return the letters of ``notify-keyspace-events``; None if the user may not ask.

    Empty if ``K`` is not among them: then the channels of keys get no events.
    """
    try:
        found = await send("CONFIG", "GET", "notify-keyspace-events")
    except BackendUnavailable:
        raise
    except BackendError:
        return None
    flags = frozenset("".join(value.decode() for value in dict(found).values()))
    return flags if "K" in flags else frozenset()
