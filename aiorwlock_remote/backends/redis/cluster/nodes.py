"""The connection to one node of a cluster.

The nodes of a cluster that we have a connection to, or want one to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import anyio

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.calls import BarrierCall, Call, Script
from aiorwlock_remote.backends.redis.connection.connection import (
    CLOSE_TIMEOUT,
    RedisConnection,
)
from aiorwlock_remote.backends.redis.connection.connector import Dial
from aiorwlock_remote.backends.redis.connection.handshake import Peer
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import EventLoop


class NodeListener(Protocol):
    """The cluster: whoever knows what becomes of a call elsewhere."""

    def back(self, node: NodeConnection) -> None:
        """There is a connection (again); what had waited for it was sent."""

    def lost(self, node: NodeConnection) -> None:
        """The connection is gone; the next one is on its way."""

    def refused(self, node: NodeConnection, call: Call[Any], text: str) -> bool:
        """Whether an error is taken care of, and the call left unanswered for now."""

    def unheard(self, node: NodeConnection, channel: bytes) -> None:
        """Nothing more comes on a channel of a slot: the node gave it away."""


class NodeConnection(RedisConnection):
    """A link that tells the cluster what happens to it."""

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        scripts: Sequence[Script],
        server: Server,
        before: Peer | None,
        *,
        cluster: NodeListener,
        on_message: Callable[[bytes, bytes], object],
        dial: Dial,
    ) -> None:
        """Unconnected. ``options`` are the cluster's.

        ``before``: an earlier connection to it, by a link that was closed.
        """
        super().__init__(
            *(replace(options, host=server[0], port=server[1]), host, scripts),
            on_message=on_message,
            on_reconnect=self._back,
            dial=dial,
        )
        self.server: Server = server
        self._cluster = cluster
        self.before: Peer | None = before
        self._connector.peer = before

    @property
    def peer(self) -> Peer | None:
        """Our last connection, as the server sees it."""
        return self._connector.peer

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._talk is not None

    def follow(self, before: Peer | None) -> None:
        """An earlier connection to the server is to be ended before there is ours."""
        if not self.connected:
            self.before = self._connector.peer = before

    def start(self) -> None:
        """Connect in the background; until then it is as if the connection was lost."""
        self._reconnecting.start()

    def under_way(self) -> list[Call[Any]]:
        """What was sent and not answered, in order."""
        return [] if self._talk is None else self._talk.under_way()

    def newest_first(self) -> Iterator[Call[Any]]:
        """The same, the last one first."""
        return iter(()) if self._talk is None else self._talk.newest_first()

    def settled(self) -> Call[None]:
        """Done when what was sent is answered, and what must go, too; at once if there
        is nothing of the kind.
        """
        last = BarrierCall()
        if self._aside.must_go() or self._oldest() is not None:
            return self.hand_over(last)
        last.set_result(None)
        return last

    def last_word(self) -> Call[None]:
        """Done when what was sent is answered, even of a node that is being closed."""
        last, talk = BarrierCall(), self._talk
        if talk is None or not self._closed:
            return self.hand_over(last)
        if self._held:  # sent when it knows the scripts again
            self._aside.put(last, self._host.clock.now())
        else:
            talk.send(last, last.packed())
        return last

    def take_unsent(self) -> Iterable[Call[Any]]:
        """What was not sent yet, in order; from now on the caller's."""
        return self._aside.take()

    def unheard(self, channel: bytes) -> None:
        """A slot is gone."""
        self._cluster.unheard(self, channel)

    def refused(self, call: Call[Any], text: str) -> bool:
        """The cluster knows."""
        return self._cluster.refused(self, call, text)

    def ended(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        """The connection is lost, if there was one."""
        there_was = self.connected
        super().ended(error, unsent)
        if there_was:
            self._cluster.lost(self)

    def _back(self) -> None:
        self._cluster.back(self)


class NodePool:
    """A connection is made when it is first needed, and closed with the last slot."""

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        scripts: Sequence[Script],
        cluster: NodeListener,
        on_message: Callable[[bytes, bytes], object],
        dial: Dial,
    ) -> None:
        """None yet."""
        self._host = host
        self._cluster = cluster
        self._made = partial(
            NodeConnection,
            *(options, host, scripts),
            cluster=cluster,
            on_message=on_message,
            dial=dial,
        )
        self._nodes: dict[Server, NodeConnection] = {}
        self._retired: list[NodeConnection] = []
        self._left: dict[Server, Peer | None] = {}
        self._closed = False

    def make(self, server: Server) -> NodeConnection:
        """An unconnected one, for a question; whoever made it closes it."""
        return self._made(server, self._left.get(server))

    def add(self, node: NodeConnection) -> bool:
        """From now on it is ours: what waited for a connection to it has one.

        Unless there is one, or was one meanwhile: that one's was not ended before.
        """
        if node.server in self._nodes or self._left.get(node.server) != node.before:
            return False
        self._nodes[node.server] = node
        self._cluster.back(node)
        return True

    def find(self, server: Server | None) -> NodeConnection | None:
        """The one there is."""
        return None if server is None else self._nodes.get(server)

    def all(self) -> list[NodeConnection]:
        """Those that have slots, or had them a moment ago."""
        return list(self._nodes.values())

    def all_connected(self) -> bool:
        """Whether none of them is away."""
        return all(node.connected for node in self._nodes.values())

    def start(self, server: Server) -> NodeConnection:
        """A new one, which connects in the background, unless all are closed."""
        node = self._nodes[server] = self.make(server)
        if self._closed:
            node.abort()
        else:
            node.start()
        return node

    def retire(self, node: NodeConnection) -> None:
        """Close it in the background, when all is answered or 1 s is over."""
        del self._nodes[node.server]
        self._retired.append(node)
        if not node.connected:
            self._leave(node)

        async def close() -> None:
            try:
                await node.aclose()
            finally:
                self._leave(node)
            if not self._closed:
                self._retired.remove(node)

        self._host.spawn(close)

    def _leave(self, node: NodeConnection) -> None:
        """What was not answered there is not to be carried out when we are back."""
        self._left[node.server] = node.peer
        again = self._nodes.get(node.server)
        if again is not None:
            again.follow(node.peer)

    async def aclose(self) -> None:
        """Close all, at the same time; at once if it is cancelled."""
        self._closed = True
        nodes = (*self._nodes.values(), *self._retired)
        last = [node.closing() for node in nodes]
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT):
                for answered in last:
                    with suppress(BackendError):
                        await answered
        finally:
            for node in nodes:
                node.abort()
            for node in nodes:
                await node.aclose()
