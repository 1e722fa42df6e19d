"""Each request is answered once and by its own answer, wherever its slot goes.

The nodes, time and the turns of the loop are the history's own; the loop is asyncio's.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aiorwlock_remote.backends.redis.cluster.slots import SLOTS, SlotMap
from tests.backends.redis.cluster_state_machine import (
    ADDRESSES,
    ALL_KEYS,
    EVENTS,
    NODES,
    ClusterSetup,
)
from tests.backends.redis.fake_cluster import TAGS, Node
from tests.examples_of_histories import many

KEYS = st.sampled_from(ALL_KEYS)
SOME_NODE = st.integers(0, NODES - 1)
REFUSALS = ("TRYAGAIN soon", "ASK 1 h:1", "CLUSTERDOWN The cluster is down")
HERE = (
    *("nodes_learn_the_map",) * 3,
    *("all_is_well",) * 2,
    *("every_task_is_cancelled", "nothing_is_answered_for_long", "we_close"),
)
RARE = (
    *HERE,
    *("a_node_restarts", "a_node_has_another_address", "a_node_sleeps"),
    *("a_node_is_wrong", "a_node_forgets_all", "a_node_is_terse"),
    "the_keeper_tells",
)


class ClusterStateMachine(ClusterSetup, RuleBasedStateMachine):
    """One cluster, from the first connection until all are closed."""

    @initialize()
    def begins(self) -> None:
        self.connects()

    @invariant()
    def all_is_as_it_must_be(self) -> None:
        self.each_is_answered_once_and_by_its_own()
        self.in_the_order_of_the_requests()

    def teardown(self) -> None:
        self.is_over()

    # What users do.

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), must_go=st.booleans())
    def asks(self, keys: list[bytes], must_go: bool) -> None:
        self.ask(keys, must_go=must_go)

    @rule(key=KEYS)
    def asks_for_two_together(self, key: bytes) -> None:
        self.ask_for_two_together(key)

    @rule(key=KEYS, anywhere=st.booleans())
    def asks_a_question(self, key: bytes, anywhere: bool) -> None:
        self.ask_a_question(key, anywhere=anywhere)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def do_not_wait_for_it(self, data: st.DataObject) -> None:
        self.loop.forsake(data.draw(st.sampled_from(self.asked[-3:])).pending)

    @rule(channel=st.sampled_from(sorted(EVENTS)))
    def listens(self, channel: bytes) -> None:
        self.listen(channel)

    # What the nodes and the network do.

    @rule(data=st.data(), commands=st.integers(1, 9))
    def a_node_works(self, data: st.DataObject, commands: int) -> None:
        lines = self.truth.lines()[-6:]
        if lines:
            line = data.draw(st.sampled_from(lines))
            for _ in range(commands):
                line.carry_out()

    @rule(data=st.data(), size=st.sampled_from([1, 20, 1000, 1000]))
    def answers_come(self, data: st.DataObject, size: int) -> None:
        lines = [line for line in self.truth.lines() if line.answers]
        if lines:
            data.draw(st.sampled_from(lines)).deliver(size)

    @rule(
        data=st.data(),
        port_state=st.sampled_from(["open"] * 4 + ["refused", "silent"]),
        keys=st.lists(KEYS, max_size=3),
    )
    def a_connection_is_cut(
        self, data: st.DataObject, port_state: str, keys: list[bytes]
    ) -> None:
        """At our end; the server does not notice. Perhaps while we have much to say."""
        self.ask(keys)
        node = data.draw(st.sampled_from(self.truth.nodes))
        self.truth.port_states[node.address] = port_state
        for line in node.lines[-1:]:
            line.cut()

    # What becomes of slots.

    @rule(tag=st.sampled_from(TAGS), refusal=st.sampled_from(REFUSALS))
    def a_slot_begins_to_move(self, tag: bytes, refusal: str) -> None:
        self.truth.begin_move(tag, refusal)

    @rule(tag=st.sampled_from(TAGS), to=SOME_NODE)
    def a_slot_has_moved(self, tag: bytes, to: int) -> None:
        self.truth.move(tag, self.truth.nodes[to])

    @rule(away=SOME_NODE, to=SOME_NODE)
    def a_node_is_replaced(self, away: int, to: int) -> None:
        """It loses all it has, and knows nothing of it."""
        old = self.truth.nodes[away]
        view = dict(old.view)
        for tag, owner in self.truth.owner.items():
            if owner is old:
                self.truth.move(tag, self.truth.nodes[to])
        old.view = view

    # What happens once in a while.

    @rule(what=st.sampled_from(RARE), node=SOME_NODE, data=st.data())
    def besides(self, what: str, node: int, data: st.DataObject) -> None:
        if what in HERE:
            getattr(self, what)()
        else:
            getattr(self, what)(self.truth.nodes[node], data)

    def a_node_restarts(self, node: Node, _: object) -> None:
        node.restart()

    def a_node_has_another_address(self, node: Node, data: st.DataObject) -> None:
        """It knows; the others do not yet."""
        free = [a for a in ADDRESSES if self.truth.at(a) is None]
        old, node.address = node.address, data.draw(st.sampled_from(free))
        node.restart()
        for tag, there in node.view.items():
            if there == old:
                node.view[tag] = node.address

    def a_node_sleeps(self, node: Node, _: object) -> None:
        node.asleep = not node.asleep

    def a_node_is_wrong(self, node: Node, data: st.DataObject) -> None:
        """About whose a slot is, where it is not its own."""
        somewhere = st.none() | st.sampled_from(ADDRESSES)
        for tag in data.draw(st.lists(st.sampled_from(TAGS), min_size=1)):
            node.view[tag] = data.draw(somewhere)

    def a_node_forgets_all(self, node: Node, _: object) -> None:
        """The scripts, and who has which slot."""
        node.forget()
        node.view = dict.fromkeys(TAGS)

    def a_node_is_terse(self, node: Node, _: object) -> None:
        node.terse = not node.terse

    def the_keeper_tells(self, _: object, data: st.DataObject) -> None:
        """It has the map of one of the nodes, else the one it knew: never none."""
        node = data.draw(st.sampled_from(self.truth.nodes))
        slots, owner = SlotMap(ADDRESSES[:2]), node.view[b""]
        slots.follow(self.cluster.slots)
        if owner is not None:
            nodes = owner, *(each.address for each in self.truth.nodes)
            replicas = [[host.encode(), port] for host, port in nodes]
            slots.learn([[0, SLOTS - 1, *replicas]], node.address)
        self.cluster.adopt_map(slots)


TestHistories = ClusterStateMachine.TestCase
TestHistories.settings = settings(max_examples=many(70), stateful_step_count=50)
