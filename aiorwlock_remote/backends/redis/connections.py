"""How a store gets at its server: by a URL, as a user's client would, by a cluster.

Opening the connections of a ``Locks``.
"""

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
    Request,
    Script,
    SendCommand,
)
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    BlockingConnection,
    FallbackChannel,
    MainLoopChannel,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder
from aiorwlock_remote.ports import EventLoop


class ConnectionCallbacks(TypedDict):
    """Who is told what comes by itself.

    ``on_message(channel, payload)`` is called for each message, ``on_reconnect()`` when
    a lost connection was replaced, its channels subscribed again and the calls that
    had waited sent.
    """

    on_message: Callable[[bytes, bytes], object]
    on_reconnect: Callable[[], object]


async def open_connection(
    options: Options,
    host: EventLoop,
    scripts: Sequence[Script],
    *,
    channels: Iterable[bytes] = (),
    dial: Dial = dial_url,
    finder: PrimaryFinder | None = None,
    **ears: Unpack[ConnectionCallbacks],
) -> RedisConnection:
    """A link over the running loop, connected and subscribed to the channels.

    Without these there is no connection, now or later.

    Raises:
        BackendError: the server cannot be reached, or is not fit for us.
        ConfigurationError: no such database, or unusable certificates.
    """
    link = RedisConnection(
        *(options, host, scripts), channels=channels, dial=dial, finder=finder, **ears
    )
    if finder is not None:
        finder.on_switch(partial(host.call_soon, link.leave_former))
    await link.open()
    return link


async def open_cluster(
    options: Options,
    host: EventLoop,
    scripts: Sequence[Script],
    own: bytes,
    **ears: Unpack[ConnectionCallbacks],
) -> ClusterClient:
    """Likewise for a cluster: to one node; to the others when they are needed.

    ``own``: a channel of ours, heard at the node that has its slot, to see that the
    user may. All that others tell us of comes on channels that end like it.

    Raises:
        BackendError: no node answers, one is not fit for us, or slots have no node.
        ConfigurationError: it is no cluster, or unusable certificates.
    """
    cluster = ClusterClient(options, host, scripts, own, **ears)
    try:
        await cluster.open()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await cluster.aclose()
        raise
    return cluster


T = TypeVar("T")


class Endpoint(Protocol):
    """What a store talks to: a ``Link`` or, with the same promises, a
    ``ClusterClient``.
    """

    def run(
        self,
        script: Script,
        args: tuple[Arg, ...],
        decode: Callable[[Any], T],
        *,
        must_go: bool = False,
    ) -> Pending[T]:
        """Run a script."""

    def send(self, call: Call[Any], /, *more: Call[Any]) -> None:
        """Send a script, and others right behind it over the same connection."""

    def send_at_once(self, key: bytes, *calls: Call[Any]) -> bool:
        """Send them in one write where this key is; False: there is no connection."""

    def call(self, *args: Arg) -> Pending[Any]:
        """Send a command."""

    def call_at(self, *args: Arg) -> Pending[Any]:
        """Send a command to the server that has the key behind its name."""

    def everywhere(self) -> dict[str, SendCommand]:
        """How to ask each server that has keys of its own, by its name."""

    def subscribe(self, channel: bytes) -> None:
        """Hear what is told of a key from now on."""

    def unsubscribe(self, channel: bytes) -> None:
        """Not any more."""

    async def aclose(self) -> None:
        """Wait for the answers still to come, 1 s at most, and close for good."""


class RenewalChannel(Protocol):
    """What renewals go over. Used, and closed, in the keeper's thread."""

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """Run all scripts; the answers as they came, in order.

        An exception takes the place of an answer that is an error.

        Raises:
            BackendError: it is not known which were carried out. After ``timeout``
                seconds at the latest.
        """

    def give_up(self) -> None:
        """Let what is under way fail soon, and all after it; from any thread."""

    def abort(self) -> None:
        """Let what is under way fail soon; from any thread."""

    def close(self) -> None:
        """Close what it opened."""


class ConnectionFactory(Protocol):
    """Where connections come from.

    Whatever opens them: commands, answers and messages are our link's, over one
    connection a server. So their order, and what becomes of them when the connection is
    lost, is the same for all lines.
    """

    @property
    def off_loop(self) -> bool:
        """Whether batches do without the store's event loop."""

    async def open(
        self,
        options: Options,
        host: EventLoop,
        own: bytes,
        finder: PrimaryFinder | None,
        **ears: Unpack[ConnectionCallbacks],
    ) -> Endpoint:
        """Connect, and hear the channel ``own``; see ``open_connection``.

        ``finder``: the store's, if Sentinels watch the server.

        Raises:
            BackendError: the server cannot be reached, or is not fit for us.
            ConfigurationError: no such database, or unusable certificates.
        """

    def batches(
        self,
        options: Options,
        host: EventLoop,
        endpoint: Endpoint,
        finder: PrimaryFinder | None,
    ) -> RenewalChannel:
        """What renewals go over; ``endpoint`` and ``finder`` are the store's own."""


class UrlConnectionFactory:
    """Connections of our own."""

    off_loop = True

    async def open(
        self,
        options: Options,
        host: EventLoop,
        own: bytes,
        finder: PrimaryFinder | None,
        **ears: Unpack[ConnectionCallbacks],
    ) -> Endpoint:
        """By the driver of the running loop."""
        if options.seeds:
            return await open_cluster(options, host, ALL, own, **ears)
        return await open_connection(
            *(options, host, ALL), channels=(own,), finder=finder, **ears
        )

    def batches(
        self,
        options: Options,
        host: EventLoop,
        endpoint: Endpoint,
        finder: PrimaryFinder | None,
    ) -> RenewalChannel:
        """Over blocking connections; over the store's where there is no other."""
        if isinstance(endpoint, ClusterClient):
            tell = partial(host.call_soon, endpoint.told)
            return ClusterRenewalChannel(options, host.clock, ALL, endpoint.slots, tell)
        own = BlockingConnection(options, host.clock, ALL, finder)
        return FallbackChannel(
            own, MainLoopChannel(options.where, host, endpoint), host
        )
