"""The keeper's connections to the nodes of a cluster, as nodes come and go."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, SlotMap
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.core.url import parse
from tests.backends.redis.connections import CLOCK_ONLY

ONE, TWO = ("one", 1), ("two", 2)


class FakeRunner:
    """Of the event loop of a channel that is connected."""

    def __init__(self) -> None:
        self.closed: bool = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()

    def close(self) -> None:
        self.closed = True


def test_a_node_without_slots_keeps_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes come and go for months, each with an address of its own."""
    slots = SlotMap([ONE])
    slots.owners = [ONE] * SLOTS
    options = options_of(parse("redis+cluster://one:1"))
    batches = ClusterRenewalChannel(options, CLOCK_ONLY, ALL, slots, lambda _: None)
    runners: dict[Any, FakeRunner] = {}
    for server in (ONE, TWO):
        runners[server] = FakeRunner()
        channel: Any = batches._connection(server)
        channel._runner = runners[server]
    slots.owners = [TWO] * SLOTS
    assert batches.lane(b"key") == TWO
    assert runners[ONE].closed
    assert not runners[TWO].closed

    def run_many(*_: object) -> list[Any]:
        # In another thread, which renews over the connection to the second node.
        slots.owners = [ONE] * SLOTS
        assert batches.lane(b"key") == ONE
        assert not runners[TWO].closed
        return []

    monkeypatch.setattr(ThreadLoopChannel, "run_many", run_many)
    batches._connection(TWO).run_many([], 1.0)
    assert runners[TWO].closed
