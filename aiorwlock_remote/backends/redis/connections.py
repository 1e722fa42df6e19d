"""Where the connections of a store come from: a URL, or a user's client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.connection.calls import (
    Arg,
    Call,
    Script,
    SendCommand,
)
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
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

T = TypeVar("T")


class Endpoint(Protocol):
    """What a store sends to: a ``RedisConnection``, or a ``ClusterClient``."""

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        """Run a script; see ``RedisConnection.run``."""

    def send(self, call: Call[Any], /, *more: Call[Any]) -> None:
        """Send a script, and ``more`` right behind it over the same connection."""

    def send_at_once(self, key: bytes, *calls: Call[Any]) -> bool:
        """Send calls in one write to the server of ``key``; False: no connection."""

    def call(self, *args: Arg) -> Pending[Any]:
        """Send a command to any server."""

    def call_for_key(self, *args: Arg) -> Pending[Any]:
        """Send a command to the server of the key ``args[1]``."""

    def servers(self) -> dict[str, SendCommand]:
        """Return how to send a command to each server that has keys, by its name."""

    def subscribe(self, channel: bytes) -> None:
        """Subscribe to the events of a key, over this connection and all to come."""

    def unsubscribe(self, channel: bytes) -> None:
        """End such a subscription."""

    async def aclose(self) -> None:
        """Wait for outstanding replies, one second at most, and close for good."""


class ConnectionCallbacks(TypedDict):
    """``on_message`` and ``on_reconnect`` of a ``RedisConnection``."""

    on_message: Callable[[bytes, bytes], object]
    on_reconnect: Callable[[], object]


class ConnectionFactory(Protocol):
    """Opens the connections of a store.

    Whatever opens them: commands, replies and messages are ``RedisConnection``'s, over
    one connection a server. So their order, and what becomes of them when a connection
    is lost, is the same for every factory.
    """

    @property
    def off_loop(self) -> bool:
        """Whether renewals do without the store's event loop."""

    async def open(
        self,
        options: Options,
        loop: EventLoop,
        wake_channel: bytes,
        finder: PrimaryFinder | None,
        **callbacks: Unpack[ConnectionCallbacks],
    ) -> Endpoint:
        """Connect and subscribe to ``wake_channel``.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: It has no such database, or the certificates cannot be
                used.
        """

    def renewal_channel(
        self,
        options: Options,
        loop: EventLoop,
        endpoint: Endpoint,
        finder: PrimaryFinder | None,
    ) -> RenewalChannel:
        """Return a new channel for renewals; ``endpoint`` is the store's own."""


class UrlConnectionFactory:
    """Connections opened by this library, as a URL says."""

    off_loop = True

    async def open(
        self,
        options: Options,
        loop: EventLoop,
        wake_channel: bytes,
        finder: PrimaryFinder | None,
        **callbacks: Unpack[ConnectionCallbacks],
    ) -> Endpoint:
        if not options.seeds:
            return await open_connection(
                *(options, loop, ALL),
                channels=(wake_channel,),
                finder=finder,
                **callbacks,
            )
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
    """Return a connected ``RedisConnection``; see there for arguments and errors.

    With ``finder`` the connection leaves its server when another becomes the primary.
    """
    connection = RedisConnection(
        *(options, loop, scripts),
        channels=channels,
        dial=dial,
        finder=finder,
        **callbacks,
    )
    if finder is not None:
        finder.on_switch(partial(loop.call_soon, connection.leave_former_primary))
    await connection.open()
    return connection
