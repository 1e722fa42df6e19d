"""How often a cluster is asked for its map while a node is away, by trio's clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, slot_of
from aiorwlock_remote.backends.redis.connection.protocol import Call, as_is
from aiorwlock_remote.backends.redis.scripts import LEAVE
from tests.backends.redis.test_cluster_logs import cluster_of
from tests.backends.redis.test_slot_router import FakeNode

AWAY, THERE = ("away", 1), ("there", 2)
KEY = b"mutex_locks/a,1"
MINUTE = 60.0


class Clock:
    """Trio's."""

    def now(self) -> float:
        return trio.current_time()


class TrioHost:
    """The background is a nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.clock = Clock()
        self._nursery = nursery

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(function)


class TwoNodes:
    """Two nodes; one of them goes away. ``asked``: when somebody was asked."""

    def __init__(self, nursery: trio.Nursery, patch: pytest.MonkeyPatch) -> None:
        host: Any = TrioHost(nursery)
        self.cluster: ClusterClient = cluster_of(host, [])
        self.away, self.there = FakeNode(AWAY), FakeNode(THERE)
        half = SLOTS // 2
        self.slots: list[Server | None] = [*[AWAY] * half, *[THERE] * half]
        self.asked: list[float] = []
        nodes: Any = (self.away, self.there)
        for node in nodes:
            self.cluster._nodes.add(node)
        patch.setattr(self.cluster._refresher, "_ask", self._ask)
        self.cluster.slots.owners = self.slots
        self.cluster._adopt()

    def lose(self) -> None:
        node: Any = self.away
        self.away.connected = False
        self.cluster.node_lost(node)

    def refuse(self, text: str) -> None:
        node: Any = self.there
        call: Call[object] = Call(as_is, (1, KEY), LEAVE)
        assert self.cluster.redirected(node, call, text)

    def within(self, seconds: float) -> int:
        """How often in the last ``seconds``."""
        since = trio.current_time() - seconds
        return sum(moment >= since for moment in self.asked)

    async def _ask(self) -> bool:
        self.asked.append(trio.current_time())
        self.cluster.slots.owners = self.slots
        self.cluster._adopt()
        return True


@contextmanager
def stopped(nursery: trio.Nursery) -> Iterator[None]:
    yield
    nursery.cancel_scope.cancel()


def played(play: Callable[[TwoNodes], Awaitable[None]]) -> None:
    """Run a test by a clock that jumps."""

    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            async with trio.open_nursery() as nursery:
                with stopped(nursery):
                    await play(TwoNodes(nursery, patch))

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def long_away(nodes: TwoNodes) -> None:
    nodes.lose()
    await trio.sleep(MINUTE)


def test_a_node_that_stays_away_is_looked_for_ever_more_seldom() -> None:
    async def play(nodes: TwoNodes) -> None:
        nodes.lose()
        await trio.sleep(1)
        assert nodes.within(1) >= 2
        await trio.sleep(MINUTE)
        before = len(nodes.asked)
        await trio.sleep(10 * MINUTE)
        assert 100 < len(nodes.asked) - before < 400

    played(play)


def test_repeated_refusals_cause_no_hurried_refresh() -> None:
    """CLUSTERDOWN, over and over: those who wait try the node itself."""

    async def play(nodes: TwoNodes) -> None:
        await long_away(nodes)
        before = len(nodes.asked)
        for _ in range(1200):
            nodes.refuse("CLUSTERDOWN The cluster is down")
            await trio.sleep(0.05)
        assert 0 < len(nodes.asked) - before < 50

    played(play)


@pytest.mark.parametrize("news", ["MOVED", "unheard", "lost", "notified", "nobody"])
def test_news_are_looked_after_at_once(news: str) -> None:
    async def play(nodes: TwoNodes) -> None:
        await long_away(nodes)
        other: Any = nodes.there
        await trio.sleep(0.001)  # not in the moment of a look
        before = len(nodes.asked)
        if news == "MOVED":
            nodes.refuse(f"MOVED {slot_of(KEY)} third:3")
        elif news == "unheard":
            nodes.cluster.slot_unsubscribed(other, KEY)
        elif news == "lost":
            nodes.cluster.node_lost(other)
        elif news == "notified":
            nodes.cluster.adopt_map(nodes.cluster.slots)
        else:
            owners = list(nodes.slots)
            owners[slot_of(KEY)] = None
            nodes.slots = nodes.cluster.slots.owners = owners
            nodes.cluster.send(Call(as_is, (1, KEY), LEAVE))
        await trio.sleep(0.06)
        assert len(nodes.asked) > before

    played(play)


def test_a_map_that_changed_is_soon_asked_for_again() -> None:
    """Much else may change then."""

    async def play(nodes: TwoNodes) -> None:
        await long_away(nodes)
        nodes.slots = [THERE, *nodes.slots[1:]]
        await trio.sleep(MINUTE)
        late = [moment for moment in nodes.asked if moment > MINUTE]
        assert min(later - one for one, later in pairwise(late)) < 0.1

    played(play)


def test_no_node_is_asked_when_all_are_connected() -> None:
    async def play(nodes: TwoNodes) -> None:
        await long_away(nodes)
        nodes.away.connected = True
        node: Any = nodes.away
        nodes.cluster.node_connected(node)
        await trio.sleep(10)
        before = len(nodes.asked)
        await trio.sleep(MINUTE)
        assert len(nodes.asked) == before

    played(play)
