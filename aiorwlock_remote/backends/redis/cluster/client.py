"""A Redis cluster behind the face of one connection.

Each command goes to the node that has its key's slot. A node that has given the slot
away says so (MOVED); while the slot is being moved, or its node replaced, nobody
carries anything out (ASK, TRYAGAIN, CLUSTERDOWN): then the calls of that slot wait,
for ``connect_timeout`` at most. A script names a key that never exists, so that a node
refuses it before its first step while any of the slot's keys may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar, cast

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.addresses import Server, shown
from aiorwlock_remote.backends.redis.cluster.nodes import NodeConnection, NodePool
from aiorwlock_remote.backends.redis.cluster.sharded_subscriptions import (
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slot_router import (
    SlotRouter,
    is_routed_by_slot,
)
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, parse_moved, slot_of
from aiorwlock_remote.backends.redis.cluster.topology import (
    Discovery,
    TopologyRefresher,
)
from aiorwlock_remote.backends.redis.connection.calls import (
    Arg,
    Call,
    KeyedCall,
    Script,
    SendCommand,
    SubscribeCall,
    as_is,
)
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
from aiorwlock_remote.backends.redis.connection.protocol import REDIRECTIONS
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop

T = TypeVar("T")


class ClusterClient:
    """A link to every node that is needed, as one.

    Like ``Link``: commands for one key are carried out in the order they were handed
    over; what was sent over a connection that is lost is never sent again; what was
    not carried out waits for ``connect_timeout``. Used in its loop's thread only.
    """

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        scripts: Sequence[Script],
        own: bytes,
        *,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
        dial: Dial = dial_url,
    ) -> None:
        """Unconnected. ``own``: a channel of this process; all of them end like it.

        ``on_reconnect()`` is called whenever messages may have been lost.
        """
        self.slots: SlotMap = SlotMap(options.seeds)
        self._options = options
        self._own = own
        self._host = host
        self._on_reconnect = on_reconnect
        self._nodes = NodePool(options, host, scripts, self, on_message, dial)
        self._channels = ShardedSubscriptions(self.slots, self._nodes)
        self._discovery = Discovery(options, self.slots, self._nodes, self._adopt)
        self._search = TopologyRefresher(
            host, self._discovery.ask, self._nodes.all_connected
        )
        self._routes = SlotRouter(
            *(options, host, self.slots, self._nodes, self._channels),
            gate=own.rpartition(b"/")[2],
            node_of=self._node,
            search=self._search,
        )
        self._telling = self._closing = False
        self._adopted: list[Server | None] | None = self.slots.owners

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        """As ``Link``."""
        call = Call(decode, args, script, must_go)
        self._routes.send(call)
        return call

    def call(self, *args: Arg) -> Pending[Any]:
        """Ask any node."""
        there = [node for node in self._nodes.all() if node.connected]
        if there:
            return there[0].call(*args)
        owner = next(iter(self.slots.primaries), None)
        call: Call[Any] = Call(as_is, args)
        if owner is None:
            call.failed(not_sent(self._options.where, "no node has slots"))
        else:
            _ = self._node(owner).hand_over(call)
        return call

    def call_at(self, *args: Arg) -> Pending[Any]:
        """Send a command to the node that has the key behind its name."""
        call = KeyedCall(as_is, args)
        self._routes.send(call)
        return call

    def everywhere(self) -> dict[str, SendCommand]:
        """How to ask each node that has slots, by its name."""
        return {
            shown(server): self._node(server).call for server in self.slots.primaries
        }

    def send(self, call: Call[Any], *more: Call[Any]) -> None:
        """Send a script, the others right behind it; they fail if it has to wait."""
        self._routes.send(call, *more)

    def send_at_once(self, key: bytes, *calls: Call[Any]) -> bool:
        """Send them in one write where this key is, if there is a connection."""
        node = self._nodes.find(self.slots.owners[slot_of(key)])
        return node is not None and node.send_at_once(key, *calls)

    def subscribe(self, channel: bytes) -> None:
        """Hear what is told of a key, wherever it is, from now on."""
        self._channels.add_key(channel)
        self._channels.move_keys()

    def unsubscribe(self, channel: bytes) -> None:
        """Not any more."""
        self._channels.remove_key(channel)

    async def open(self) -> None:
        """Learn the map from the first seed that answers, and connect to one node.

        Raises:
            BackendError: no seed answers within ``connect_timeout``, or it is not fit
                for us, or no node with slots can be reached.
            ConfigurationError: it is no cluster.
        """
        with anyio.move_on_after(self._options.connect_timeout):
            node = await self._discovery.first()
            # Whether the user may is to be known now. A node that has not got the slot
            # any more looks at that first: then what it says is an answer, too.
            mine = (b"%b/%d" % (self._own, number) for number in count())
            owners = self.slots.owners
            channel = next(c for c in mine if owners[slot_of(c)] == node.server)
            await node.hand_over(SubscribeCall("SSUBSCRIBE", channel))
            return
        raise BackendUnavailable(what=f"{self._options.where}: no answer in time")

    async def aclose(self) -> None:
        """As ``Link``, all nodes at once; 1 s also for what has to go elsewhere."""
        try:
            await self._routes.finish()
        finally:
            self._closing = True  # each node has its last calls
            mending, looking = self._routes.close(), self._search.errand
            looking.call_off()
            try:
                await self._nodes.aclose()
            finally:
                await mending.wait_closed()
                await looking.wait_closed()

    def told(self, slots: SlotMap) -> None:
        """The keeper has another map, and went by it already."""
        self.slots.follow(slots)
        self._adopt()
        self._search.doubt(soon=True)

    # What the nodes tell.

    def back(self, node: NodeConnection) -> None:
        """A node can be asked (again)."""
        del node
        self._changed()

    def lost(self, node: NodeConnection) -> None:
        """A node is away; somebody may take its place."""
        self._channels.lost(node)
        self._search.doubt(soon=True)

    def unheard(self, node: NodeConnection, channel: bytes) -> None:
        """A slot was given away."""
        self._channels.forget(channel, node)
        self._search.doubt(soon=True)
        self._changed()

    def refused(self, node: NodeConnection, call: Call[Any], text: str) -> bool:
        """A node does not have the slot, or not quite."""
        if text.partition(" ")[0] not in REDIRECTIONS:
            return False
        told = parse_moved(text, node.server)
        new = told is not None and self.slots.owners[told.slot] != told.server
        self._search.doubt(soon=new)
        if isinstance(call, SubscribeCall):  # sent again before the next call
            self._channels.forget(cast("bytes", call.args[1]), node)
            call.answered(None)
            return True
        if not is_routed_by_slot(call):
            return False
        self._routes.refused(node, call, text, told)
        if told is not None and new:
            self.slots.note(told)
            self._adopted = None  # of the next map, too, all has to be done
            self._changed()
        return True

    # The map.

    def _node(self, server: Server) -> NodeConnection:
        node = self._nodes.find(server)
        if node is None:
            node = self._nodes.start(server)
            self._search.hasten()
        return node

    def _adopt(self) -> None:
        """The slots are as the map now says."""
        if self._closing or self.slots.owners == self._adopted:
            return
        self._adopted = self.slots.owners
        self._search.hasten()
        self._routes.slots_changed()
        primaries = set(self.slots.primaries)
        for node in self._nodes.all():
            if node.server not in primaries:
                self._channels.lost(node)
                self._nodes.retire(node)
        self._changed()

    def _changed(self) -> None:
        """Told soon, and once: each slot that moved is found out by itself."""
        if not self._telling:
            self._telling = True
            self._host.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        self._channels.move_keys()
        self._on_reconnect()
