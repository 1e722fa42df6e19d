"""How a store gets at its server: by a URL, as a user's client would, by a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiorwlock_remote.backends.redis.blocking import BlockingLink
from aiorwlock_remote.backends.redis.calls import Arg, Call
from aiorwlock_remote.backends.redis.cluster import Cluster
from aiorwlock_remote.backends.redis.cluster_batches import NodeBatches
from aiorwlock_remote.backends.redis.link import Ask
from aiorwlock_remote.backends.redis.opening import open_cluster, open_link
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Host

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.scripts import Request, Script

T = TypeVar("T")


class Endpoint(Protocol):
    """What a store talks to: a ``Link`` or, with the same promises, a ``Cluster``."""

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

    def call_at(self, key: bytes, *args: Arg) -> Pending[Any]:
        """Send a command to the server that has this key."""

    def everywhere(self) -> dict[str, Ask]:
        """How to ask each server that has keys of its own, by its name."""

    def subscribe(self, channel: bytes) -> None:
        """Hear what is told of a key from now on."""

    def unsubscribe(self, channel: bytes) -> None:
        """Not any more."""

    async def aclose(self) -> None:
        """Wait for the answers still to come, 1 s at most, and close for good."""


class Batches(Protocol):
    """What renewals go over. Used, and closed, in the keeper's thread."""

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """Run all scripts; the answers as they came, in order.

        An exception takes the place of an answer that is an error.

        Raises:
            BackendError: it is not known which were carried out. After ``timeout``
                seconds at the latest.
        """

    def close(self) -> None:
        """Close what it opened."""


class Lines(Protocol):
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
        host: Host,
        own: bytes,
        *,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
    ) -> Endpoint:
        """Connect, and hear the channel ``own``; see ``open_link``.

        Raises:
            BackendError: the server cannot be reached, or is not fit for us.
            ConfigurationError: no such database, or unusable certificates.
        """

    def batches(self, options: Options, host: Host, endpoint: Endpoint) -> Batches:
        """What renewals go over; ``endpoint`` is the store's own."""


class UrlLines:
    """Connections of our own."""

    off_loop = True

    async def open(
        self,
        options: Options,
        host: Host,
        own: bytes,
        *,
        on_message: Callable[[bytes, bytes], object],
        on_reconnect: Callable[[], object],
    ) -> Endpoint:
        """By the driver of the running loop."""
        if options.seeds:
            return await open_cluster(
                *(options, host, ALL, own),
                on_message=on_message,
                on_reconnect=on_reconnect,
            )
        return await open_link(
            *(options, host, ALL),
            on_message=on_message,
            on_reconnect=on_reconnect,
            channels=(own,),
        )

    def batches(self, options: Options, host: Host, endpoint: Endpoint) -> Batches:
        """Over blocking connections."""
        if isinstance(endpoint, Cluster):
            tell = partial(host.call_soon, endpoint.told)
            return NodeBatches(options, host.clock, ALL, endpoint.slots, tell)
        return BlockingLink(options, host.clock, ALL)
