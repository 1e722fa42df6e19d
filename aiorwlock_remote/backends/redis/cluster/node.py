"""The connection to one node of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from aiorwlock_remote.backends.redis.connection.calls import BarrierCall, Call
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Dial
from aiorwlock_remote.backends.redis.connection.handshake import Peer
from aiorwlock_remote.backends.redis.connection.script import Script
from aiorwlock_remote.backends.redis.hosts import Server
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
