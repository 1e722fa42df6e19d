"""Opens the connections of a store: to one server, a Sentinel primary or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypedDict, Unpack

import anyio

from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
from aiorwlock_remote.backends.redis.connection.protocol import Script
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    BlockingConnection,
    FallbackChannel,
    MainLoopChannel,
    RenewalChannel,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.ports import EventLoop

Endpoint = RedisConnection | ClusterClient
"""What a store sends commands to; both classes have the same methods and guarantees."""


class ConnectionCallbacks(TypedDict):
    """Types of the arguments ``on_message`` and ``on_reconnect`` of RedisConnection."""

    on_message: Callable[[bytes, bytes], object]
    on_reconnect: Callable[[], object]


class ConnectionFactory:
    """Opens the connections of a store according to its ``Options``.

    Subclasses may open connections in another way. Commands, replies and messages
    always go through ``RedisConnection``, with one connection per server, so their
    order and the effects of a lost connection are the same for every factory.
    """

    off_loop: bool = True
    """Whether renewals continue while the store's event loop is blocked."""

    async def open(
        self,
        options: Options,
        loop: EventLoop,
        wake_channel: bytes,
        finder: PrimaryFinder | None,
        **callbacks: Unpack[ConnectionCallbacks],
    ) -> Endpoint:
        """Connect, and subscribe to ``wake_channel``.

        Args:
            options: The server, the credentials and the timeouts.
            loop: The event loop of all callers and callbacks.
            wake_channel: The channel of messages that wake this client.
            finder: Finds the primary, if Sentinels watch the server.
            **callbacks: ``on_message(channel, data)``; ``on_reconnect()`` after a loss.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """
        if not options.seeds:
            return await open_connection(
                *(options, loop, ALL),
                channels=(wake_channel,),
                finder=finder,
                **callbacks,
            )
        # Connected to one node; to the others when they are needed.
        cluster = ClusterClient(options, loop, ALL, wake_channel, **callbacks)
        try:
            await cluster.open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await cluster.aclose()
            raise
        return cluster

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
            return ClusterRenewalChannel(options, loop.clock, ALL, slots, adopt)
        own = BlockingConnection(options, loop.clock, ALL, finder)
        fallback = MainLoopChannel(options.where, loop, endpoint.send_at_once)
        return FallbackChannel(own, fallback, loop.clock)


async def open_connection(
    options: Options,
    loop: EventLoop,
    scripts: Sequence[Script],
    *,
    channels: Iterable[bytes] = (),
    dial: Dial = dial_url,
    finder: PrimaryFinder | None = None,
    **callbacks: Unpack[ConnectionCallbacks],
) -> RedisConnection:
    """Create a ``RedisConnection`` with these arguments, open it, and return it.

    With ``finder``, the connection is replaced when another server becomes the primary.
    """
    connection = RedisConnection(
        *(options, loop, scripts),
        channels=channels,
        dial=dial,
        finder=finder,
        **callbacks,
    )
    # Registered before the first await, so that no switch is missed.
    if finder is not None:
        finder.on_switch(partial(loop.call_soon, connection.leave_former_primary))
    await connection.open()
    return connection
