"""Subscriptions of a cluster client, each at the node that has the channel's slot."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.nodes import NodeConnection, NodePool
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, slot_of
from aiorwlock_remote.backends.redis.connection.protocol import (
    ShardUnsubscribeCall,
    SubscribeCall,
)
from aiorwlock_remote.backends.redis.log import log, log_debug
from aiorwlock_remote.errors import BackendUnavailable

MAX_CHANNELS = 1024
UNUSED_AFTER = 10.0
"""Seconds after the last use when a channel may be dropped. A waiting client asks more
often than that, so the channel has no waiters."""


@dataclass(slots=True)
class _Subscription:
    node: NodeConnection | None
    needed_at: float


class ShardedSubscriptions:
    """Keeps a cluster client subscribed to wake-up and keyspace event channels."""

    def __init__(self, slots: SlotMap, nodes: NodePool) -> None:
        self._slots = slots
        self._nodes = nodes
        self._wakeups: dict[bytes, _Subscription] = {}  # the longest unused first
        self._keys: dict[bytes, NodeConnection | None] = {}

    def need(self, channel: bytes, node: NodeConnection, now: float) -> None:
        """Subscribe to a wake-up channel at ``node``, before the next call is sent.

        ``now``: loop time; channels long unused are dropped.
        """
        # Removed and put back, so that the dict is in the order of the last use.
        wakeups = self._wakeups
        subscription = wakeups.pop(channel, None)
        if subscription is not None and subscription.node is node:
            subscription.needed_at = now
            wakeups[channel] = subscription
            return
        if len(wakeups) >= MAX_CHANNELS:
            self._drop_unused(now)
        # A script passes over a client that does not listen. So the subscription goes
        # ahead of the script that may create a queue entry, in the same write.
        wakeups[channel] = _Subscription(node, now)
        self._subscribe("SSUBSCRIBE", channel, node)

    def add_key(self, channel: bytes) -> None:
        """Note a keyspace event channel; the next ``move_keys`` subscribes to it."""
        self._keys.setdefault(channel, None)

    def remove_key(self, channel: bytes) -> None:
        """Unsubscribe from a keyspace event channel."""
        node = self._keys.pop(channel, None)
        if node is not None and node.connected:
            node.submit(SubscribeCall("UNSUBSCRIBE", channel)).log_failure()

    def move_keys(self) -> None:
        """Subscribe to each keyspace event channel at the node that has the key now."""
        for channel, before in self._keys.items():
            owner = self._slots.owners[slot_of(channel.partition(b":")[2])]
            node = self._nodes.find(owner)
            if node is before or node is None or not node.connected:
                continue
            self._keys[channel] = node
            self._subscribe("SUBSCRIBE", channel, node)
            if before is not None and before.connected:
                before.submit(SubscribeCall("UNSUBSCRIBE", channel)).log_failure()

    def lost(self, node: NodeConnection) -> None:
        """Forget all subscriptions at a node whose connection was lost."""
        for subscription in self._wakeups.values():
            if subscription.node is node:
                subscription.node = None
        for channel, subscribed in self._keys.items():
            if subscribed is node:
                self._keys[channel] = None

    def forget(self, channel: bytes, node: NodeConnection) -> None:
        """Forget that ``channel`` is subscribed at ``node``: its slot has moved."""
        subscription = self._wakeups.get(channel)
        if subscription is not None and subscription.node is node:
            del self._wakeups[channel]
        if self._keys.get(channel) is node:
            self._keys[channel] = None

    def _subscribe(self, verb: str, channel: bytes, node: NodeConnection) -> None:
        def answered(call: Pending[None]) -> None:
            # Not sent in time: subscribed anew when the channel is next needed.
            if isinstance(call.error, BackendUnavailable):
                self.forget(channel, node)
            elif call.error is None and log.isEnabledFor(logging.DEBUG):
                name = channel.decode(errors="replace")
                log_debug("listener_subscribed", channel=name)

        call = node.submit(SubscribeCall(verb, channel))
        call.log_failure()
        call.add_done_callback(answered)

    def _drop_unused(self, now: float) -> None:
        channel, oldest = next(iter(self._wakeups.items()))
        if now - oldest.needed_at < UNUSED_AFTER:
            return
        del self._wakeups[channel]
        if oldest.node is not None and oldest.node.connected:
            oldest.node.submit(ShardUnsubscribeCall(channel)).log_failure()
