"""The keeper's connections to the nodes of a cluster, as nodes come and go."""

from __future__ import annotations

from typing import Any

from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, SlotMap
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.runtime.event_loop import SystemClock

ONE, TWO = ("one", 1), ("two", 2)


class FakeSocket:
    def __init__(self) -> None:
        self.closed: bool = False

    def close(self) -> None:
        self.closed = True


def test_a_node_without_slots_keeps_no_connection() -> None:
    """Nodes come and go for months, each with an address of its own."""
    slots = SlotMap([ONE])
    slots.owners = [ONE] * SLOTS
    options = options_of(parse("redis+cluster://one:1"))
    batches = ClusterRenewalChannel(options, SystemClock(), ALL, slots, lambda _: None)
    sockets: dict[Any, FakeSocket] = {}
    for server in (ONE, TWO):
        sockets[server] = FakeSocket()
        link: Any = batches._connection(server)
        link._socket = sockets[server]
    slots.owners = [TWO] * SLOTS
    assert batches.lane(b"key") == TWO
    assert sockets[ONE].closed
    assert not sockets[TWO].closed
    slots.owners = [ONE] * SLOTS
    with batches._connection(TWO)._alone():  # another thread renews over it
        assert batches.lane(b"key") == ONE
        assert not sockets[TWO].closed
    assert sockets[TWO].closed
