"""What a process hears, and where, while slots go from node to node."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.backends.redis.cluster import nodes as module
from aiorwlock_remote.backends.redis.cluster.nodes import (
    UNUSED_AFTER,
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slot_router import SlotRouter
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap
from aiorwlock_remote.backends.redis.cluster.topology import TopologyRefresher
from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    ShardUnsubscribeCall,
    as_is,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import LEAVE, LOOK, PAIR_LOOK
from tests.backends.redis.test_slot_router import (
    SERVERS,
    SLOT,
    FakeNode,
    FakeNodes,
    Host,
    nobody,
)

EVENTS = b"__keyspace@0__:mutex_locks/a,1"
KEY = b"mutex_locks/a,1"


class Heard:
    """Channels over nodes that only note what they are sent."""

    def __init__(self) -> None:
        self.slots = SlotMap(SERVERS)
        self.slots.owners = [SERVERS[0]] * len(self.slots.owners)
        nodes: Any = FakeNodes()
        self.channels = ShardedSubscriptions(self.slots, nodes)
        self.nodes: Any = nodes
        self.one: Any = nodes.find(SERVERS[0])
        self.two: Any = nodes.find(SERVERS[1])

    def move(self) -> None:
        self.slots.owners = [SERVERS[1]] * len(self.slots.owners)


def said(node: FakeNode) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = [call.args for call in node.sent]
    node.sent.clear()
    return calls


def test_keys_are_not_heard_where_they_were() -> None:
    heard = Heard()
    heard.channels.add_key(EVENTS)
    heard.channels.move_keys()
    assert said(heard.one) == [("SUBSCRIBE", EVENTS)]
    heard.move()
    heard.channels.move_keys()
    assert said(heard.two) == [("SUBSCRIBE", EVENTS)]
    assert said(heard.one) == [("UNSUBSCRIBE", EVENTS)]
    heard.channels.remove_key(EVENTS)
    assert (said(heard.one), said(heard.two)) == ([], [("UNSUBSCRIBE", EVENTS)])


def test_an_old_node_is_late_to_tell() -> None:
    """What is heard at the new one is not forgotten, and heard once."""
    heard = Heard()
    heard.channels.need(b"c", heard.one, 1.0)
    heard.channels.need(b"c", heard.two, 1.0)
    heard.channels.forget(b"c", heard.one)
    heard.channels.need(b"c", heard.two, 1.0)
    assert said(heard.two) == [("SSUBSCRIBE", b"c")]
    heard.channels.forget(b"c", heard.two)
    heard.channels.need(b"c", heard.two, 1.0)
    assert said(heard.two) == [("SSUBSCRIBE", b"c")]


def test_channels_unused_for_long_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHANNELS", 2)
    heard = Heard()
    for number, now in ((1, 0.0), (2, 0.0), (1, 5.0), (3, UNUSED_AFTER)):
        heard.channels.need(b"%d" % number, heard.one, now)
    left = [
        call.args for call in heard.one.sent if isinstance(call, ShardUnsubscribeCall)
    ]
    assert left == [("SUNSUBSCRIBE", b"2")]
    heard.channels.need(b"4", heard.one, UNUSED_AFTER + 4)  # all others were used since
    assert (
        len([call for call in heard.one.sent if isinstance(call, ShardUnsubscribeCall)])
        == 1
    )


def test_to_look_needs_no_channel() -> None:
    assert not LOOK.waits
    assert not PAIR_LOOK.waits


def test_a_wait_follows_its_redirected_script() -> None:
    """WAIT where the script is not would count replicas that have nothing to say."""
    heard, host = Heard(), Host()
    search = TopologyRefresher(host, nobody, lambda: True)
    options = Options(seeds=SERVERS)
    routes = SlotRouter(
        *(options, host, heard.slots, heard.nodes, heard.channels),
        client_id=b"client",
        refresher=search,
    )
    heard.one.connected = False
    calls = [Call(as_is, (1, KEY, n), LEAVE) for n in range(2)]
    waits = [Call(int, ("WAIT", 1, 100)) for _ in range(2)]
    for call, wait in zip(calls, waits, strict=True):
        routes.send(call, wait)
    heard.slots.owners = [*heard.slots.owners]
    heard.slots.owners[SLOT] = SERVERS[1]
    routes.slots_changed()
    assert [call for call in heard.two.sent if call.script] == calls
    assert [wait.error is not None for wait in waits] == [True, True]
    assert all(call.args[0] == "SSUBSCRIBE" for call in heard.one.unsent)
    assert not search._stale
    heard.slots.owners = [None] * len(heard.slots.owners)
    routes.send(Call(as_is, (1, KEY, 3), LEAVE))
    routes.retry_due()
    assert search._stale
