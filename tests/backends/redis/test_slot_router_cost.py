"""What it costs when much is under way and many slots move: work counted, not time."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.backends.redis.cluster import slot_router as module
from aiorwlock_remote.backends.redis.cluster.nodes import (
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slot_router import SlotRouter
from aiorwlock_remote.backends.redis.cluster.slots import (
    Moved,
    SlotMap,
    parse_moved,
    slot_of,
)
from aiorwlock_remote.backends.redis.cluster.topology import TopologyRefresher
from aiorwlock_remote.backends.redis.connection.protocol import Call, as_is
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import LEAVE
from tests.backends.redis.test_slot_router import (
    SERVERS,
    FakeNode,
    FakeNodes,
    Host,
    nobody,
)

CALLS = 2000
ONE, TWO, _ = SERVERS


class Burst:
    """Many calls, each with a key and about each with a slot of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, calls: int = CALLS) -> None:
        self.looks = 0
        patch.setattr(module, "slot_of", self._slot_of)
        self.slots = SlotMap(SERVERS)
        self.slots.owners = [ONE] * len(self.slots.owners)
        nodes: Any = FakeNodes()
        self.one: FakeNode = nodes.find(ONE)
        self.two: FakeNode = nodes.find(TWO)
        host = Host()
        self.routes = SlotRouter(
            *(Options(seeds=SERVERS), host, self.slots, nodes),
            ShardedSubscriptions(self.slots, nodes),
            client_id=b"client",
            refresher=TopologyRefresher(host, nobody, lambda: True),
        )
        self.clock = host.clock
        self.calls = [self._call(number) for number in range(calls)]
        for call in self.calls:
            self.routes.send(call)

    def scripts(self, node: FakeNode) -> list[Call[Any]]:
        return [call for call in node.sent if call.script is not None]

    def _call(self, number: int) -> Call[Any]:
        return Call(as_is, (1, b"mutex_locks/a,%d" % number), LEAVE, must_go=True)

    def _slot_of(self, key: bytes) -> int:
        self.looks += 1
        return slot_of(key)


def test_many_moved_slots_are_learnt_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MOVED, as often as there are calls; each is looked at some times, not by all."""
    burst = Burst(monkeypatch)
    asked_node: Any = burst.one
    while burst.one.sent:
        call = burst.one.sent.popleft()
        if call.script is None:
            call.answered(b"PONG")
            continue
        slot = slot_of(call.args[1])
        text = f"MOVED {slot} {TWO[0]}:{TWO[1]}"
        burst.routes.redirect(asked_node, call, text, found := parse_moved(text, ONE))
        assert found is not None
        burst.slots.note(found)
    assert set(burst.scripts(burst.two)) == set(burst.calls)
    assert burst.looks < 10 * CALLS


def test_many_slots_that_moved_are_learnt_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    burst = Burst(monkeypatch)
    burst.slots.owners = [TWO] * len(burst.slots.owners)
    burst.routes.slots_changed()
    assert burst.looks < 10 * CALLS


def test_a_slot_that_nobody_serves_is_tried_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CLUSTERDOWN, for as long as a node is away: each slot that is wanted asks."""
    burst, tries = Burst(monkeypatch, calls=1), 0
    asked_node: Any = burst.one

    def answer(text: str, found: Moved | None = None) -> None:
        nonlocal tries
        while burst.one.sent:
            call = burst.one.sent.popleft()
            if call.script is None:
                call.answered(b"PONG")
            else:
                tries += 1
                burst.routes.redirect(asked_node, call, text, found)

    def look(seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            burst.clock.seconds += 0.05
            burst.routes.retry_due()
            answer("CLUSTERDOWN The cluster is down")

    answer("CLUSTERDOWN The cluster is down")
    look(1)
    assert tries >= 4
    tries = 0
    look(20)
    assert 30 < tries < 150
