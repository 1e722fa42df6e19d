"""Client of a Redis cluster, used like a connection to a single server.

Each command goes to the node that has its key's slot. A node that has given the slot
away replies MOVED. While a slot is being moved, or its node replaced, no node carries
out commands for the slot (ASK, TRYAGAIN, CLUSTERDOWN): their calls wait, for
``connect_timeout`` seconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar, cast

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.addresses import Server, shown
from aiorwlock_remote.backends.redis.cluster.nodes import (
    NodeConnection,
    NodePool,
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slot_router import (
    SlotRouter,
    is_routed_by_slot,
    slot_of_call,
)
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, parse_moved, slot_of
from aiorwlock_remote.backends.redis.cluster.topology import (
    Discovery,
    TopologyRefresher,
)
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
from aiorwlock_remote.backends.redis.connection.protocol import (
    REDIRECTIONS,
    Arg,
    Call,
    KeyedCall,
    Script,
    SendCommand,
    SubscribeCall,
    as_is,
)
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop

T = TypeVar("T")


class ClusterClient:
    """Client of a cluster: sends each command to the node that has its key.

    Has the methods and guarantees of ``RedisConnection`` (commands stay in order, none
    is carried out twice), but only among the commands of one key. For use in the loop's
    thread only.
    """

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        wake_channel: bytes,
        *,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
        dial: Dial = dial_url,
    ) -> None:
        self.slots: SlotMap = SlotMap(options.seeds)
        self._options = options
        # Ends with a slash and the client's id, as do its channels of all slots.
        self._wake_channel = wake_channel
        self._loop = loop
        # Called whenever messages may have been lost.
        self._on_reconnect = on_reconnect
        self._nodes = NodePool(options, loop, scripts, self, on_message, dial)
        self._channels = ShardedSubscriptions(self.slots, self._nodes)
        self._discovery = Discovery(options, self.slots, self._nodes, self._adopt)
        complete = lambda: all(node.connected for node in self._nodes.all())  # noqa: E731
        self._refresher = TopologyRefresher(loop, self._discovery.ask, complete)
        self._router = SlotRouter(
            *(options, loop, self.slots, self._nodes, self._channels),
            client_id=wake_channel.rpartition(b"/")[2],
            refresher=self._refresher,
        )
        self._notifying = self._closing = False
        self._adopted: list[Server | None] | None = self.slots.owners

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        call = Call(decode, args, script, must_go)
        self._router.send(call)
        return call

    def call(self, *args: Arg) -> Pending[Any]:
        """Send a command to any node; return the pending reply, not decoded."""
        connected = [node for node in self._nodes.all() if node.connected]
        if connected:
            return connected[0].call(*args)
        owner = next(iter(self.slots.primaries), None)
        call: Call[Any] = Call(as_is, args)
        if owner is None:
            call.failed(not_sent(self._options.where, "no node has slots"))
        else:
            _ = self._router.node_at(owner).submit(call)
        return call

    def call_for_key(self, *args: Arg) -> Pending[Any]:
        """Send a command to the node of its key, ``args[1]``; return its raw reply."""
        call = KeyedCall(as_is, args)
        self._router.send(call)
        return call

    def servers(self) -> dict[str, SendCommand]:
        """Map the name of each node with slots to a function that sends it commands."""
        node_at = self._router.node_at
        return {shown(one): node_at(one).call for one in self.slots.primaries}

    def states(self) -> dict[str, str]:
        """Map the name of each node to its connection's state: open or lost."""
        return {
            shown(node.server): "open" if node.connected else "lost"
            for node in self._nodes.all()
        }

    def send(self, call: Call[Any], *more: Call[Any]) -> None:
        """Send calls, in one write, to the node of the first call's key.

        If no node can serve the first now, it is queued, and the others fail.
        """
        self._router.send(call, *more)

    def send_at_once(self, *calls: Call[Any]) -> bool:
        """Send calls, in one write, to the node of the first call's key.

        Return False if the node cannot be used now, and none of the calls was sent.
        """
        node = self._nodes.find(self.slots.owners[slot_of_call(calls[0])])
        return node is not None and node.send_at_once(*calls)

    def subscribe(self, channel: bytes) -> None:
        """Subscribe to ``channel``, a key's events, at the node that has the key."""
        self._channels.add_key(channel)
        self._channels.move_keys()

    def unsubscribe(self, channel: bytes) -> None:
        self._channels.remove_key(channel)

    async def open(self) -> None:
        """Learn the slot map from the first seed that answers, and connect to one node.

        Raises:
            BackendError: No seed answers within ``connect_timeout`` or can be used for
                locks, or no node with slots can be reached.
            ConfigurationError: The seeds are not nodes of a cluster.
        """
        with anyio.move_on_after(self._options.connect_timeout):
            node = await self._discovery.first()
            names = (b"%b/%d" % (self._wake_channel, number) for number in count())
            owners = self.slots.owners
            channel = next(c for c in names if owners[slot_of(c)] == node.server)
            # Whether the user may SSUBSCRIBE must be known now, not at the first wait
            # (test_a_user_who_may_not_subscribe_learns_it_at_once). A node that has
            # just given the channel's slot away checks rights first, so its MOVED is an
            # answer, too (test_a_node_looks_at_rights_before_it_sends_elsewhere).
            await node.submit(SubscribeCall("SSUBSCRIBE", channel))
            return
        raise BackendUnavailable(what=f"{self._options.where}: no answer in time")

    async def aclose(self) -> None:
        """Wait for outstanding replies, then close all nodes.

        First, releases and withdrawals whose slot is moving get ``CLOSE_TIMEOUT``
        seconds to reach the new node. Then the replies get as long.
        """
        try:
            await self._router.finish()
        finally:
            # From here on each node has its last calls, and a map that is learnt late
            # must open no connection
            # (test_a_map_that_comes_last_of_all_changes_nothing).
            self._closing = True
            retrying, refreshing = self._router.close(), self._refresher.task
            refreshing.stop()
            try:
                await self._nodes.aclose()
            finally:
                await retrying.wait_closed()
                await refreshing.wait_closed()

    def adopt_map(self, slots: SlotMap) -> None:
        """Take over ``slots``, a newer map that the renewal channel has learnt."""
        self.slots.follow(slots)
        self._adopt()
        self._refresher.refresh(soon=True)

    # What the nodes report

    def node_connected(self, node: NodeConnection) -> None:
        del node
        self._changed()

    def node_lost(self, node: NodeConnection) -> None:
        self._channels.lost(node)
        self._refresher.refresh(soon=True)

    def slot_unsubscribed(self, node: NodeConnection, channel: bytes) -> None:
        where, name = shown(node.server), channel.decode(errors="replace")
        log_debug("listener_lost", server=where, channel=name)
        self._channels.forget(channel, node)
        self._refresher.refresh(soon=True)
        self._changed()

    def redirected(self, node: NodeConnection, call: Call[Any], text: str) -> bool:
        if text.partition(" ")[0] not in REDIRECTIONS:
            return False
        moved = parse_moved(text, node.server)
        new = moved is not None and self.slots.owners[moved.slot] != moved.server
        self._refresher.refresh(soon=new)
        if isinstance(call, SubscribeCall):
            # Subscribed at the new node before the next call that needs the channel.
            self._channels.forget(cast("bytes", call.args[1]), node)
            call.answered(None)
            return True
        if not is_routed_by_slot(call):
            return False
        self._router.redirect(node, call, text, moved)
        if moved is not None and new:
            where = shown(moved.server)
            log_debug("topology_changed", server=where, slot=moved.slot)
            self.slots.note(moved)
            # Not adopted: when the whole map is learnt, even one that equals this one,
            # the calls of all moved slots have still to be sent on.
            self._adopted = None
            self._changed()
        return True

    # The map

    def _adopt(self) -> None:
        if self._closing or self.slots.owners == self._adopted:
            return
        self._adopted = self.slots.owners
        # More may change with what has changed: a failover moves many slots.
        self._refresher.hurry()
        self._router.slots_changed()
        primaries = set(self.slots.primaries)
        for node in self._nodes.all():
            if node.server not in primaries:
                self._channels.lost(node)
                self._nodes.retire(node)
        self._changed()

    def _changed(self) -> None:
        # Waiters are notified once for a thousand slots that moved in this tick
        # (test_many_slots_that_moved_wake_everybody_once).
        if not self._notifying:
            self._notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._notifying = False
        self._channels.move_keys()
        self._on_reconnect()
