"""Connections to the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.connection import (
    CLOSE_TIMEOUT,
    RedisConnection,
)
from aiorwlock_remote.backends.redis.connection.connector import Dial, Peer
from aiorwlock_remote.backends.redis.connection.protocol import (
    BarrierCall,
    Call,
    Script,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import EventLoop

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.cluster.client import ClusterClient


import logging
from dataclasses import dataclass

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, slot_of
from aiorwlock_remote.backends.redis.connection.protocol import (
    ShardUnsubscribeCall,
    SubscribeCall,
)
from aiorwlock_remote.backends.redis.log import log, log_debug
from aiorwlock_remote.errors import BackendUnavailable


class NodeConnection(RedisConnection):
    """Connection to one cluster node; it reports events to the ``ClusterClient``."""

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        server: Server,
        before: Peer | None,
        *,
        cluster: ClusterClient,
        on_message: Callable[[bytes, bytes], object],
        dial: Dial,
    ) -> None:
        super().__init__(
            *(replace(options, host=server[0], port=server[1]), loop, scripts),
            on_message=on_message,
            on_reconnect=lambda: self._cluster.node_connected(self),
            dial=dial,
        )
        self.server: Server = server
        self._cluster = cluster
        # Our last closed connection to the server, which the handshake kills there.
        self.before: Peer | None = before
        self._connector.peer = before

    @property
    def peer(self) -> Peer | None:
        return self._connector.peer

    @property
    def connected(self) -> bool:
        return self._protocol is not None

    def follow(self, before: Peer | None) -> None:
        """Let the next handshake kill the older connection ``before`` at the server.

        None: there is none to kill. Has no effect once this node is connected.
        """
        if not self.connected:
            self.before = self._connector.peer = before

    def start(self) -> None:
        """Connect in the background; calls are queued until then."""
        self._reconnecting.start()

    def unanswered(self) -> list[Call[Any]]:
        """Return the calls that were sent and not answered, oldest first."""
        return [] if self._protocol is None else self._protocol.unanswered()

    def newest_first(self) -> Iterator[Call[Any]]:
        return iter(()) if self._protocol is None else self._protocol.newest_first()

    def settled(self) -> Call[None]:
        """Return a call that is done once outstanding calls are answered.

        It is done already if nothing was sent and no release or withdrawal is queued.
        """
        barrier = BarrierCall()
        if self._offline.must_go() or self._oldest() is not None:
            return self.submit(barrier)
        barrier.set_result(None)
        return barrier

    def barrier(self) -> Call[None]:
        """Return a call that is done once all calls sent before are answered.

        Allowed while the node is being closed, too, when other new calls are refused
        (test_a_call_refused_by_a_node_that_is_left_is_answered).
        """
        barrier, protocol = BarrierCall(), self._protocol
        if protocol is None or not self._closed:
            return self.submit(barrier)
        if self._reloading:
            self._offline.put(barrier, self._loop.clock.now())
        else:
            protocol.send(barrier, barrier.packed())
        return barrier

    def take_unsent(self) -> Iterable[Call[Any]]:
        """Remove and return the queued calls, which were not sent yet, oldest first."""
        return self._offline.take()

    def slot_unsubscribed(self, channel: bytes) -> None:
        self._cluster.slot_unsubscribed(self, channel)

    def redirected(self, call: Call[Any], text: str) -> bool:
        return self._cluster.redirected(self, call, text)

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        was_connected = self.connected
        super().connection_lost(error, unsent)
        if was_connected:
            self._cluster.node_lost(self)


class NodePool:
    """Connections to nodes: opened when first needed, closed when without slots."""

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        cluster: ClusterClient,
        on_message: Callable[[bytes, bytes], object],
        dial: Dial,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._new_node = partial(
            NodeConnection,
            *(options, loop, scripts),
            cluster=cluster,
            on_message=on_message,
            dial=dial,
        )
        self._nodes: dict[Server, NodeConnection] = {}
        self._retired: list[NodeConnection] = []
        self._last_peers: dict[Server, Peer | None] = {}
        self._closed = False

    def make(self, server: Server) -> NodeConnection:
        """Return a new, unconnected node outside of the pool; the caller closes it."""
        return self._new_node(server, self._last_peers.get(server))

    def add(self, node: NodeConnection) -> bool:
        """Add a connected node that ``make`` returned; return True if it was added.

        False: the pool has, or had meanwhile, another connection to the same server.
        """
        server = node.server
        # The pool has a node for the server, or had one meanwhile, whose last
        # connection this node did not kill: commands of that one could still be carried
        # out.
        if server in self._nodes or self._last_peers.get(server) != node.before:
            return False
        self._nodes[server] = node
        self._cluster.node_connected(node)
        return True

    def find(self, server: Server | None) -> NodeConnection | None:
        return None if server is None else self._nodes.get(server)

    def all(self) -> list[NodeConnection]:
        """Return the nodes that have slots, or had slots a moment ago."""
        return list(self._nodes.values())

    def start(self, server: Server) -> NodeConnection:
        """Add a new node and return it; it connects in the background."""
        node = self._nodes[server] = self.make(server)
        if self._closed:
            node.abort()
        else:
            node.start()
        return node

    def retire(self, node: NodeConnection) -> None:
        """Remove a node, which closes in the background once its calls are answered."""
        del self._nodes[node.server]
        self._retired.append(node)
        # Lost before it was retired: nothing will be known later that is not known now,
        # and another connection may be made before this one is closed
        # (test_a_node_that_we_left_when_we_had_lost_it_is_known_at_once).
        if not node.connected:
            self._remember(node)

        async def close() -> None:
            try:
                await node.aclose()
            finally:
                self._remember(node)
            if not self._closed:
                self._retired.remove(node)

        self._loop.spawn(close)

    async def aclose(self) -> None:
        """Wait ``CLOSE_TIMEOUT`` seconds at most for replies, and close all nodes."""
        self._closed = True
        nodes = (*self._nodes.values(), *self._retired)
        barriers = [node.begin_close() for node in nodes]
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT):
                for barrier in barriers:
                    with suppress(BackendError):
                        await barrier
        finally:
            # All of them first: a second cancellation may cut the waits below.
            for node in nodes:
                node.abort()
            for node in nodes:
                await node.aclose()

    def _remember(self, node: NodeConnection) -> None:
        # A command that was not answered there must not be carried out after newer ones
        # when this client comes back, so the next connection kills this one
        # (test_a_node_that_we_left_carries_nothing_out_when_we_are_back).
        self._last_peers[node.server] = node.peer
        again = self._nodes.get(node.server)
        if again is not None:
            again.follow(node.peer)


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
