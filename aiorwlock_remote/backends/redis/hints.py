"""Hints among the clients of another store, over a Redis server (``wake=redis://…``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.addresses import Server, invalid
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import (
    Dial,
    OutageLog,
    dial_url,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    RespProtocol,
    Transport,
    as_is,
)
from aiorwlock_remote.backends.redis.keys import wake_channel
from aiorwlock_remote.backends.redis.options import Options, options_of
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.ports import EventLoop, StoreBase, StoreSettings


class RedisHints(RedisConnection):
    """Hint channel: one connection, subscribed to the channel of its client.

    Of a cluster, any node will do: the nodes pass messages on to each other.
    """

    def __init__(
        self, options: Options, loop: EventLoop, client_id: str, store: StoreBase
    ) -> None:
        """Begin to connect. Hints to ``client_id``, and outages, go to ``store``."""
        self._store = store
        self._own_channel = wake_channel(client_id)
        super().__init__(
            *(options, loop, ()),
            on_message=self._message,
            on_reconnect=self.check,
            channels=(self._own_channel,),
            dial=_dial_any(options.seeds) if options.seeds else dial_url,
        )
        # The store logs its outages: one line each, whatever the reasons.
        self._connector.outage = _ReportedOutages(options.where, store)
        self._reconnecting.start()

    @property
    def where(self) -> str:
        return self._options.where

    def hint(self, text: str, client_ids: Sequence[str]) -> None:
        self._publish(*((wake_channel(one), text) for one in client_ids))

    def check(self) -> None:
        # The right to publish is checked with it. No client takes this for a hint.
        self._publish((self._own_channel, ""))

    def _publish(self, *messages: tuple[bytes, str]) -> None:
        calls = [Call(as_is, ("PUBLISH", *message)) for message in messages]
        # A hint that has to wait is worth nothing: none is queued.
        if self.send_at_once(*calls):
            calls[-1].add_done_callback(self._published)

    def _published(self, published: Pending[object]) -> None:
        error = published.error
        if error is None or isinstance(error, Exception):
            self._store.channel_changed(error)

    def _message(self, channel: bytes, payload: bytes) -> None:
        del channel
        self._store.hinted(payload)


class _ReportedOutages(OutageLog):
    def __init__(self, server: str, store: StoreBase) -> None:
        super().__init__(server)
        self._store = store

    def note(self, event: str, error: Exception) -> None:  # noqa: ARG002 - its own name
        self.reason = str(error)
        self._store.channel_changed(error)


def _dial_any(seeds: Sequence[Server]) -> Dial:
    turns = cycle(seeds)

    async def dial(
        options: Options, protocol: RespProtocol, loop: EventLoop
    ) -> Transport:
        host, port = next(turns)
        return await dial_url(replace(options, host=host, port=port), protocol, loop)

    return dial


def open_channel(
    address: Address, loop: EventLoop, store: StoreBase, settings: StoreSettings
) -> RedisHints:
    """Return a hint channel at the servers of a URL, see ``ports.ChannelOpener``."""
    options = options_of(address, connect_timeout=settings.connect_timeout)
    if options.min_replicas:
        raise invalid(address, "hints have no replicas: no min_replicas")
    return RedisHints(options, loop, settings.client_id, store)
