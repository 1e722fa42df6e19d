"""What a cluster tells those who wait, when much happens at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from aiorwlock_remote.backends.redis.connection.protocol import Call, as_is
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.backends.redis.scripts import ALL, LEAVE
from aiorwlock_remote.core.url import parse
from tests.backends.redis.test_slot_router import FakeNode
from tests.fixed_clock import StandingClock

KEYS = [b"mutex_locks/a,%d" % number for number in range(100)]


class Later:
    """A fake event loop that runs on demand."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self._soon: list[Callable[[], object]] = []

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._soon.append(lambda: function(*args))

    def spawn(self, function: object) -> None:
        """Nothing runs in the background."""

    def tick(self) -> None:
        soon, self._soon = self._soon, []
        for function in soon:
            function()


def cluster_of(host: Any, reconnects: list[None]) -> ClusterClient:  # noqa: ANN401 - a fake
    return ClusterClient(
        options_of(parse("redis+cluster://one:1")),
        host,
        ALL,
        b"rwlock.wake/client",
        on_message=lambda _channel, _payload: None,
        on_reconnect=lambda: reconnects.append(None),
    )


def test_many_slots_that_moved_wake_everybody_once() -> None:
    """Each waiter hears MOVED: each waking all the others would be their square."""
    host, reconnects = Later(), list[None]()
    cluster, node = cluster_of(host, reconnects), FakeNode(("one", 1))
    old: Any = node
    cluster.slots.owners = [node.server] * len(cluster.slots.owners)
    for key in KEYS:
        call: Call[object] = Call(as_is, (1, key), LEAVE)
        assert cluster.redirected(old, call, f"MOVED {slot_of(key)} two:2")
    host.tick()
    assert len(reconnects) == 1
    assert {cluster.slots.owners[slot_of(key)] for key in KEYS} == {("two", 2)}
    cluster.slot_unsubscribed(old, KEYS[0])
    host.tick()
    assert len(reconnects) == 2
