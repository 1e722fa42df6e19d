"""Calls of one slot among nodes that give it away: order, by any interleaving."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aiorwlock_remote.backends.redis.cluster.nodes import (
    NodeConnection,
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slot_router import SlotQueue, SlotRouter
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, parse_moved, slot_of
from aiorwlock_remote.backends.redis.cluster.topology import TopologyRefresher
from aiorwlock_remote.backends.redis.connection.protocol import Call, as_is
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.scripts import LEAVE
from aiorwlock_remote.errors import BackendUnavailable
from tests.examples_of_histories import many
from tests.fixed_clock import StandingClock

KEY = b"mutex_locks/a,1"
SLOT = slot_of(KEY)
KEYS = (KEY, b"mutex_locks/a,2")
SERVERS = (("one", 1), ("two", 2), ("three", 3))
PATIENCE = 5.0


class Host:
    """Nothing runs in the background."""

    def __init__(self) -> None:
        self.clock = StandingClock()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    def spawn(self, function: object) -> None:
        """The test looks itself."""


class FakeNode:
    """A link and its server: what was sent lies in a queue until it is answered."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server, self.before = server, None
        self.connected = True
        self.sent: deque[Call[Any]] = deque()
        self.unsent: list[Call[Any]] = []

    def submit(self, call: Call[Any]) -> Call[Any]:
        (self.sent if self.connected else self.unsent).append(call)
        return call

    def barrier(self) -> Call[Any]:
        return self.submit(Call(as_is, ("PING",), must_go=True))

    def send(self, *calls: Call[Any]) -> None:
        for call in calls:
            _ = self.submit(call)

    def unanswered(self) -> list[Call[Any]]:
        return list(self.sent)

    def newest_first(self) -> Iterator[Call[Any]]:
        yield from reversed(self.sent)

    def take_unsent(self) -> Sequence[Call[Any]]:
        calls, self.unsent = self.unsent, []
        return calls


async def nobody() -> bool:
    """Knows the map."""
    return False


class FakeNodes:
    """All of them, always there."""

    def __init__(self) -> None:
        self.by_server = {server: FakeNode(server) for server in SERVERS}

    def find(self, server: tuple[str, int] | None) -> FakeNode | None:
        return None if server is None else self.by_server[server]

    def all(self) -> list[FakeNode]:
        return list(self.by_server.values())


class Moving(RuleBasedStateMachine):
    """Two slots are moved back and forth while calls to them are made."""

    kind: type[SlotRouter] = SlotRouter

    @initialize()
    def begin(self) -> None:
        self.host, self.nodes = Host(), FakeNodes()
        self.slots = SlotMap(SERVERS)
        # The truth: whose they are, and which of them are on the move.
        self.owner = dict.fromkeys(KEYS, SERVERS[0])
        self.open: set[bytes] = set()
        self.slots.owners = [SERVERS[0]] * len(self.slots.owners)
        options = Options(seeds=SERVERS, connect_timeout=PATIENCE)
        nodes: Any = self.nodes
        self.routes = self.kind(
            options,
            self.host,
            self.slots,
            nodes,
            ShardedSubscriptions(self.slots, nodes),
            client_id=b"client",
            refresher=TopologyRefresher(self.host, nobody, lambda: True),
        )
        self.made: list[Call[Any]] = []
        self.done: dict[bytes, list[int]] = {key: [] for key in KEYS}

    @rule(key=st.sampled_from(KEYS), must_go=st.booleans())
    def call(self, key: bytes, must_go: bool) -> None:
        number = len(self.made)
        call = Call(as_is, (1, key, number), LEAVE, must_go)
        self.made.append(call)
        self.routes.send(call)

    @rule(server=st.sampled_from(SERVERS), count=st.integers(1, 4))
    def answer(self, server: tuple[str, int], count: int) -> None:
        """A node carries out, or refuses, what it got first."""
        node = self.nodes.by_server[server]
        for _ in range(min(count, len(node.sent))):
            self._answer(node, node.sent.popleft())

    def _answer(self, node: FakeNode, call: Call[Any]) -> None:
        asked_node: Any = node
        if call.script is None:
            call.answered(b"PONG")
            return
        key, number = call.args[1:]
        assert isinstance(key, bytes)
        assert isinstance(number, int)
        owner = self.owner[key]
        if owner != node.server:
            text = f"MOVED {slot_of(key)} {owner[0]}:{owner[1]}"
            self.routes.redirect(
                asked_node, call, text, found := parse_moved(text, node.server)
            )
            assert found is not None
            self.slots.note(found)
        elif key in self.open:
            self.routes.redirect(asked_node, call, "TRYAGAIN later", None)
        else:
            self.done[key].append(number)
            call.answered(number)

    @rule(key=st.sampled_from(KEYS), server=st.sampled_from(SERVERS))
    def move(self, key: bytes, server: tuple[str, int]) -> None:
        """The slot is somewhere else."""
        self.owner[key] = server
        self.open.discard(key)

    @rule(key=st.sampled_from(KEYS))
    def begin_to_move(self, key: bytes) -> None:
        self.open.add(key)

    @rule()
    def learn(self) -> None:
        """The map is asked for."""
        owners = self.slots.owners.copy()
        for key, owner in self.owner.items():
            owners[slot_of(key)] = owner
        self.slots.owners = owners
        self.routes.slots_changed()

    @rule(seconds=st.sampled_from([0.05, 0.05, 0.05, PATIENCE]))
    def look(self, seconds: float) -> None:
        self.host.clock.seconds += seconds
        self.routes.retry_due()

    @precondition(lambda self: any(n.connected for n in self.nodes.all()))
    @rule(server=st.sampled_from(SERVERS))
    def lose(self, server: tuple[str, int]) -> None:
        """A connection is cut; what was sent and not answered is not carried out."""
        node = self.nodes.by_server[server]
        node.connected = False
        lost = list(node.sent)
        node.sent.clear()
        for call in lost:
            call.failed(BackendUnavailable(what="lost"))

    @rule(server=st.sampled_from(SERVERS))
    def connect(self, server: tuple[str, int]) -> None:
        node = self.nodes.by_server[server]
        node.connected = True
        for call in node.take_unsent():
            _ = node.submit(call)

    @invariant()
    def in_order_and_once(self) -> None:
        for done in self.done.values():
            assert done == sorted(set(done))

    def teardown(self) -> None:
        """Left alone, everything is carried out, or its caller got an error."""
        if not hasattr(self, "made"):
            return
        self.open.clear()
        self.learn()
        for node in self.nodes.all():
            self.connect(node.server)
        for _ in range(20):
            self.host.clock.seconds += 0.05
            self.routes.retry_due()
            for node in self.nodes.all():
                self.answer(node.server, len(node.sent))
        assert all(call.done() for call in self.made)
        done = {number for numbers in self.done.values() for number in numbers}
        for number, call in enumerate(self.made):
            error = call.error
            if isinstance(error, BackendUnavailable) and error.nothing_done:
                assert number not in done
            elif error is None:
                assert number in done
        self.in_order_and_once()


class Hasty(SlotRouter):
    """Sends on without waiting for the answers that are still to come."""

    def _drain(self, slot: int, hold: SlotQueue, node: NodeConnection | None) -> None:
        del slot, node
        hold.wait_for(None)


class MovingHastily(Moving):
    kind = Hasty


def test_sending_on_at_once_breaks_the_order() -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            MovingHastily,
            settings=settings(TestMoving.settings, phases=[Phase.generate]),
        )


TestMoving = Moving.TestCase
TestMoving.settings = settings(
    max_examples=many(100),
    report_multiple_bugs=False,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
