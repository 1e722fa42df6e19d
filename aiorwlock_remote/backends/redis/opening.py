"""Opening the connections of a ``Locks``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypedDict, Unpack

import anyio

from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.connector import Dial, dial_url
from aiorwlock_remote.backends.redis.connection.script import Script
from aiorwlock_remote.backends.redis.options import Options
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


async def open_link(
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
