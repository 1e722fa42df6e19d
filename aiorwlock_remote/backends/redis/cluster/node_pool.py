"""The nodes of a cluster that we have a connection to, or want one to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio

from aiorwlock_remote.backends.redis.cluster.node import NodeConnection, NodeListener
from aiorwlock_remote.backends.redis.connection.connection import CLOSE_TIMEOUT
from aiorwlock_remote.backends.redis.connection.connector import Dial
from aiorwlock_remote.backends.redis.connection.handshake import Peer
from aiorwlock_remote.backends.redis.connection.script import Script
from aiorwlock_remote.backends.redis.hosts import Server
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import EventLoop


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
