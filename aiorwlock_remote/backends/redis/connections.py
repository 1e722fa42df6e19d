"""Opens the connections of a store: to one server, a Sentinel primary or a cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    KeeperChannel,
    MainLoopChannel,
    RenewalChannel,
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.promotion import ReplicaWatch
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.ports import EventLoop

Endpoint = RedisConnection | ClusterClient
"""What a store sends commands to; both classes have the same methods and guarantees."""


class ConnectionFactory:
    """Opens the connections of a store according to its ``Options``.

    Subclasses may dial in another way. Commands, replies and messages always go through
    ``RedisConnection``, with one connection per server, so their order and the effects
    of a lost connection are the same for every factory.
    """

    off_loop: bool = True
    """Whether renewals continue while the store's event loop is blocked."""

    async def open(
        self,
        options: Options,
        loop: EventLoop,
        wake_channel: bytes,
        finder: PrimaryFinder | None,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
    ) -> Endpoint:
        """Connect, and subscribe to ``wake_channel``.

        Args:
            options: The server, the credentials and the timeouts.
            loop: The event loop of all callers and callbacks.
            wake_channel: The channel of messages that wake this client.
            finder: Finds the primary, if Sentinels watch the server.
            on_message: Called with channel and payload of each message.
            on_reconnect: Called when a lost connection was replaced.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """
        endpoint: Endpoint
        if options.seeds:
            # Connected to one node; to the others when they are needed.
            endpoint = ClusterClient(
                *(options, loop, ALL, wake_channel),
                on_message=on_message,
                on_reconnect=on_reconnect,
            )
        else:
            endpoint = RedisConnection(
                *(options, loop, ALL),
                on_message=on_message,
                on_reconnect=on_reconnect,
                channels=(wake_channel,),
                dial=self.dial(finder),
                finder=finder,
            )
        try:
            await endpoint.open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await endpoint.aclose()
            raise
        return endpoint

    def renewal_channel(
        self,
        options: Options,
        loop: EventLoop,
        endpoint: Endpoint,
        finder: PrimaryFinder | None,
    ) -> RenewalChannel:
        """Return a new channel for renewals; ``endpoint`` is what ``open`` returned."""
        if isinstance(endpoint, ClusterClient):
            adopt = partial(loop.call_soon, endpoint.adopt_map)
            slots = endpoint.slots
            return ClusterRenewalChannel(options, loop, ALL, slots, adopt)
        fallback = MainLoopChannel(options, loop, endpoint.send_at_once)
        if not self.off_loop:
            return KeeperChannel(None, fallback, loop.clock, finder)

        def channel_to(server: Server) -> ThreadLoopChannel:
            dial = self.dial(None, in_thread=True, server=server)
            return ThreadLoopChannel(options.at(server), loop, ALL, dial)

        watch: ReplicaWatch | None = None
        if finder is not None:
            watch = ReplicaWatch(finder, loop.clock, channel_to)
        dial = self.dial(finder, in_thread=True)
        own = ThreadLoopChannel(options, loop, ALL, dial, finder)
        return KeeperChannel(own, fallback, loop.clock, finder, watch)

    def dial(
        self,
        finder: PrimaryFinder | None,  # noqa: ARG002 - overridden
        *,
        in_thread: bool = False,  # noqa: ARG002 - likewise
        server: Server | None = None,  # noqa: ARG002 - likewise
    ) -> Dial:
        """Return the function that opens the transports of a connection.

        Args:
            finder: Knows which server was the primary before a failover.
            in_thread: Whether the function is called in the loop of a renewal channel,
                and not in that of the store.
            server: The server to connect to, whichever is the primary; None: the
                primary, or the only server.
        """
        return dial_url
