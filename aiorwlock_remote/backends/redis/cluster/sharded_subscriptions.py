"""The channels of slots that a process hears, each at the node that has the slot."""

from __future__ import annotations

from dataclasses import dataclass

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.nodes import NodeConnection, NodePool
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, slot_of
from aiorwlock_remote.backends.redis.connection.calls import (
    ShardUnsubscribeCall,
    SubscribeCall,
)
from aiorwlock_remote.errors import BackendUnavailable

MAX_CHANNELS = 1024
UNUSED_AFTER = 10.0
"""Seconds. Whoever waits asks more often than that, so a channel that was not needed
for so long is heard for nobody."""


@dataclass(slots=True)
class _Hearing:
    node: NodeConnection | None
    needed: float


class ShardedSubscriptions:
    """Channels of places, dropped when long unused, and of keys, kept until told.

    A script that wakes somebody sees at once whether anybody listens. So whoever may
    get a place listens before: the subscription goes ahead in the same write.
    """

    def __init__(self, slots: SlotMap, nodes: NodePool) -> None:
        """None yet."""
        self._slots = slots
        self._nodes = nodes
        self._places: dict[bytes, _Hearing] = {}  # by last use
        self._keys: dict[bytes, NodeConnection | None] = {}

    def need(self, channel: bytes, node: NodeConnection, now: float) -> None:
        """Hear this place's channel at the node, from before what is sent next."""
        places = self._places
        hearing = places.pop(channel, None)
        if hearing is not None and hearing.node is node:
            hearing.needed = now
            places[channel] = hearing
            return
        if len(places) >= MAX_CHANNELS:
            self._drop_one(now)
        places[channel] = _Hearing(node, now)
        self._subscribe("SSUBSCRIBE", channel, node)

    def add_key(self, channel: bytes) -> None:
        """Hear what its node tells of a key."""
        self._keys.setdefault(channel, None)

    def remove_key(self, channel: bytes) -> None:
        """Not any more."""
        node = self._keys.pop(channel, None)
        if node is not None and node.connected:
            node.hand_over(SubscribeCall("UNSUBSCRIBE", channel)).log_failure()

    def move_keys(self) -> None:
        """Hear of each key at the node that has it now, if there is a connection."""
        for channel, last_reply_at in self._keys.items():
            owner = self._slots.owners[slot_of(channel.partition(b":")[2])]
            node = self._nodes.find(owner)
            if node is last_reply_at or node is None or not node.connected:
                continue
            self._keys[channel] = node
            self._subscribe("SUBSCRIBE", channel, node)
            if last_reply_at is not None and last_reply_at.connected:
                last_reply_at.hand_over(
                    SubscribeCall("UNSUBSCRIBE", channel)
                ).log_failure()

    def lost(self, node: NodeConnection) -> None:
        """Nothing is heard there any more."""
        for hearing in self._places.values():
            if hearing.node is node:
                hearing.node = None
        for channel, last_reply_at in self._keys.items():
            if last_reply_at is node:
                self._keys[channel] = None

    def forget(self, channel: bytes, node: NodeConnection) -> None:
        """It is not heard there (any more); another node may have the slot."""
        hearing = self._places.get(channel)
        if hearing is not None and hearing.node is node:
            del self._places[channel]
        if self._keys.get(channel) is node:
            self._keys[channel] = None

    def _subscribe(self, verb: str, channel: bytes, node: NodeConnection) -> None:
        """What comes too late to be sent is asked for anew, when it is next needed."""

        def answered(asked: Pending[None]) -> None:
            if isinstance(asked.error, BackendUnavailable):
                self.forget(channel, node)

        asked = node.hand_over(SubscribeCall(verb, channel))
        asked.log_failure()
        asked.add_done_callback(answered)

    def _drop_one(self, now: float) -> None:
        channel, oldest = next(iter(self._places.items()))
        if now - oldest.needed < UNUSED_AFTER:
            return
        del self._places[channel]
        if oldest.node is not None and oldest.node.connected:
            oldest.node.hand_over(ShardUnsubscribeCall(channel)).log_failure()
