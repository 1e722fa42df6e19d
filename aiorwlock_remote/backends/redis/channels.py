"""The channels of slots that a process hears, each at the node that has the slot."""

from __future__ import annotations

from dataclasses import dataclass

from aiorwlock_remote.backends.redis.calls import Leaving, Subscribing
from aiorwlock_remote.backends.redis.node import Node
from aiorwlock_remote.backends.redis.nodes import Nodes
from aiorwlock_remote.backends.redis.slots import SlotMap, slot_of

HEARD = 1024
QUIET = 10.0
"""Seconds. Whoever waits asks more often than that, so a channel that was not needed
for so long is heard for nobody."""


@dataclass(slots=True)
class _Hearing:
    node: Node | None
    needed: float


class Channels:
    """Channels of places, dropped when long unused, and of keys, kept until told.

    A script that wakes somebody sees at once whether anybody listens. So whoever may
    get a place listens before: the subscription goes ahead in the same write.
    """

    def __init__(self, slots: SlotMap, nodes: Nodes) -> None:
        """None yet."""
        self._slots = slots
        self._nodes = nodes
        self._places: dict[bytes, _Hearing] = {}  # by last use
        self._keys: dict[bytes, Node | None] = {}

    def need(self, channel: bytes, node: Node, now: float) -> None:
        """Hear this place's channel at the node, from before what is sent next."""
        places = self._places
        hearing = places.pop(channel, None)
        if hearing is None or hearing.node is not node:
            node.hand_over(Subscribing("SSUBSCRIBE", channel)).unawaited()
            hearing = _Hearing(node, now)
            if len(places) >= HEARD:
                self._drop_one(now)
        hearing.needed = now
        places[channel] = hearing

    def add_key(self, channel: bytes) -> None:
        """Hear what its node tells of a key."""
        self._keys.setdefault(channel, None)

    def remove_key(self, channel: bytes) -> None:
        """Not any more."""
        node = self._keys.pop(channel, None)
        if node is not None and node.connected:
            node.hand_over(Subscribing("UNSUBSCRIBE", channel)).unawaited()

    def move_keys(self) -> None:
        """Hear of each key at the node that has it now, if there is a connection."""
        for channel, heard_at in self._keys.items():
            owner = self._slots.owners[slot_of(channel.partition(b":")[2])]
            node = self._nodes.find(owner)
            if node is heard_at or node is None or not node.connected:
                continue
            self._keys[channel] = node
            node.hand_over(Subscribing("SUBSCRIBE", channel)).unawaited()
            if heard_at is not None and heard_at.connected:
                heard_at.hand_over(Subscribing("UNSUBSCRIBE", channel)).unawaited()

    def lost(self, node: Node) -> None:
        """Nothing is heard there any more."""
        for hearing in self._places.values():
            if hearing.node is node:
                hearing.node = None
        for channel, heard_at in self._keys.items():
            if heard_at is node:
                self._keys[channel] = None

    def forget(self, channel: bytes, node: Node) -> None:
        """A node does not have the slot (any more); another one may."""
        hearing = self._places.get(channel)
        if hearing is not None and hearing.node is node:
            del self._places[channel]

    def _drop_one(self, now: float) -> None:
        channel, oldest = next(iter(self._places.items()))
        if now - oldest.needed < QUIET:
            return
        del self._places[channel]
        if oldest.node is not None and oldest.node.connected:
            oldest.node.hand_over(Leaving(channel)).unawaited()
