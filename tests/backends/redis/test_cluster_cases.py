"""Cases that the random histories of a cluster have found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.backends.redis.cluster.slots import SlotMap
from aiorwlock_remote.backends.redis.connection.connection import CLOSE_TIMEOUT
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop
from tests.backends.redis.cluster_state_machine import ADDRESSES, ALL_KEYS, ClusterSetup
from tests.backends.redis.fake_cluster import TAGS
from tests.backends.redis.fake_server import Line
from tests.backends.redis.virtual_time import PATIENCE, STEP


@pytest.fixture
def setup() -> Iterator[ClusterSetup]:
    """At its end all must be as it must be in the history."""
    setup = ClusterSetup()
    setup.connects()
    yield setup
    setup.is_over()


def test_a_subscription_that_could_not_be_sent_in_time_is_sent_again(
    setup: ClusterSetup,
) -> None:
    """Else nobody would hear, for as long as the next connection lasts."""
    setup.nothing_is_answered_for_long()


def test_a_channel_is_heard_again_where_its_slot_came_back(setup: ClusterSetup) -> None:
    """Its node said that no more comes; the map never showed it."""
    one, _, three = setup.truth.nodes
    setup.ask([b"{a}1"])
    setup.all_goes_well()
    setup.truth.move(b"a", three)
    setup.truth.move(b"a", one)


def test_a_channel_that_a_node_refused_is_heard_there_later(
    setup: ClusterSetup,
) -> None:
    one, _, three = setup.truth.nodes
    setup.truth.move(b"a", three)
    one.view[b"a"] = one.address  # it believes so
    setup.ask([b"{a}1"])
    setup.all_goes_well()
    setup.truth.move(b"a", one)


def test_a_call_starts_the_search_for_a_lost_node(
    setup: ClusterSetup,
) -> None:
    """It has another address, and the task that looked for it was cancelled."""
    setup.ask(ALL_KEYS)
    setup.all_goes_well()
    away = setup.truth.nodes[2]
    away.address = ADDRESSES[-1]
    away.restart()
    setup.loop.turn()
    setup.every_task_is_cancelled()


def test_a_call_refused_by_a_node_that_is_left_is_answered(
    setup: ClusterSetup,
) -> None:
    setup.we_close()
    setup.ask([b"{b}"])
    setup.truth.move(b"b", setup.truth.nodes[0])
    setup.all_goes_well()


def test_a_call_refused_by_a_slow_node_is_answered(
    setup: ClusterSetup,
) -> None:
    """While its connection is being closed."""
    setup.ask([b"{a}1"])
    setup.loop.turn()
    setup.truth.move(b"a", setup.truth.nodes[2])
    setup.we_close()
    for _ in range(6):
        setup.clock.seconds += STEP
        setup.loop.turn()
    setup.all_goes_well()


def test_a_call_at_a_silent_node_is_answered_at_closing(
    setup: ClusterSetup,
) -> None:
    """It was refused; whether that node has more to say is not known yet."""
    setup.ask([b"{a}1"])
    setup.loop.turn()
    setup.truth.move(b"a", setup.truth.nodes[2])
    (line,) = (line for line in setup.truth.nodes[0].lines if line.open)
    while line.carry_out():
        pass
    line.deliver(len(line.answers))
    setup.we_close()
    setup.patience_ends()
    assert all(asked.answers for asked in setup.asked)


@pytest.mark.parametrize("further", [False, True])
def test_a_release_follows_its_slot_during_closing(
    setup: ClusterSetup, *, further: bool
) -> None:
    """The map comes before the connection to that node, which has lost it again."""
    _, two, three = setup.truth.nodes
    setup.truth.move(b"a", three)
    setup.truth.port_states[three.address] = "silent"
    setup.ask([b"{a}1"], must_go=True)
    setup.we_close()
    setup.all_goes_well()
    if further:
        setup.truth.move(b"a", two)
    setup.truth.port_states.clear()
    for _ in range(5):
        setup.clock.seconds += STEP / 2
        setup.all_goes_well()
    assert setup.asked[-1].pending.result() == 0


def test_a_call_behind_one_whose_script_was_forgotten_does_not_pass_it(
    setup: ClusterSetup,
) -> None:
    """The slot went in between: one is to be sent again here, the other elsewhere."""
    one, two, _ = setup.truth.nodes
    one.forget()
    setup.ask([b"{a}1", b"{a}1"])
    setup.loop.turn(1)
    (line,) = one.lines
    while not line.answers.count(b"NOSCRIPT"):
        line.carry_out()
    setup.truth.move(b"a", two)


def test_a_call_repeated_at_a_node_that_is_left_is_answered(
    setup: ClusterSetup,
) -> None:
    """It had forgotten the script, and lost the slot when it knew it again."""
    one, two, _ = setup.truth.nodes
    one.forget()
    setup.truth.move(b"", one)
    setup.ask([b"{a}1", b"{a}1"])
    setup.loop.turn()
    (line,) = one.lines
    while line.carry_out():
        pass
    setup.truth.move(b"a", two)
    late = SlotMap(ADDRESSES)
    late.owners = [ADDRESSES[1]] * len(late.owners)
    setup.cluster.adopt_map(late)


def test_a_node_with_a_call_to_be_repeated_is_not_idle(
    setup: ClusterSetup,
) -> None:
    """What comes later goes to the slot's new node when the old one is done with it."""
    one, two, _ = setup.truth.nodes
    one.forget()
    setup.ask([b"{a}1"])
    setup.loop.turn()
    late = SlotMap(ADDRESSES)
    late.owners = [ADDRESSES[1]] * len(late.owners)
    setup.cluster.adopt_map(late)
    setup.ask([b"{a}1"])
    (line,) = one.lines
    while line.carry_out():
        pass
    setup.truth.move(b"a", two)


@pytest.mark.parametrize("owner", [0, 2])
def test_a_map_that_comes_last_of_all_changes_nothing(
    setup: ClusterSetup, monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    """Nothing is sent on any more; what waits for its node still does."""
    monkeypatch.setattr("random.random", float)  # the shortest pauses
    three = setup.truth.nodes[2]
    setup.truth.move(b"a", three)
    setup.truth.port_states[three.address] = "refused"
    setup.ask([b"{a}1"], must_go=True)
    setup.we_close()
    setup.all_goes_well()
    setup.clock.seconds += CLOSE_TIMEOUT
    setup.loop.turn()
    late = SlotMap(ADDRESSES)
    late.owners = [ADDRESSES[owner]] * len(late.owners)
    setup.cluster.adopt_map(late)
    setup.truth.port_states.clear()
    for _ in range(3):
        setup.all_goes_well()
    assert (b"{a}1", 0) in setup.truth.done


def test_a_call_after_closing_opens_no_connection(setup: ClusterSetup) -> None:
    setup.we_close()
    setup.all_goes_well()
    setup.ask_a_question(b"c", anywhere=True)
    assert isinstance(setup.asked[-1].pending.error, BackendUnavailable)


def test_closing_that_is_cancelled_closes(setup: ClusterSetup) -> None:
    """Before the tasks that close each node have taken a step."""
    setup.ask([b"{b}"])
    setup.we_close()
    setup.every_task_is_cancelled()


def test_a_node_that_we_left_carries_nothing_out_when_we_are_back(
    setup: ClusterSetup,
) -> None:
    """A map that was wrong for a moment; what it had been sent was not answered."""
    setup.ask([b"{a}1"])
    setup.loop.turn()
    wrong = SlotMap(ADDRESSES)
    wrong.owners = [ADDRESSES[2]] * len(wrong.owners)
    setup.cluster.adopt_map(wrong)
    setup.ask([b"{a}1"])
    setup.truth.nodes[0].asleep = True
    setup.patience_ends()
    setup.truth.nodes[0].asleep = False


def test_a_node_that_had_a_slot_for_a_moment_is_left_again(setup: ClusterSetup) -> None:
    """It was named by another node alone; each map that we received is the same."""
    one, two, three = setup.truth.nodes
    setup.truth.move(b"", two)
    setup.truth.tell()
    setup.ask(ALL_KEYS)
    setup.all_goes_well_for_long()
    setup.truth.move(b"a", three)
    setup.ask([b"{a}1"])
    setup.loop.turn()
    setup.everything_goes_its_way()  # the first one names the third
    setup.loop.turn()
    setup.truth.move(b"a", one)


def test_a_key_is_heard_of_where_a_look_for_the_map_connects_us(
    setup: ClusterSetup,
) -> None:
    """The map is as it was, and nobody has asked that node for anything."""
    channel = b"__keyspace@0__:c"
    setup.listen(channel)
    setup.all_goes_well()
    one, two, three = setup.truth.nodes
    for node in (one, two):
        setup.truth.port_states[node.address] = "refused"
    one.lines[-1].cut()
    setup.all_goes_well_for_long()
    assert [channel in line.channels for line in three.lines if line.open] == [True]


def test_a_node_that_we_left_when_we_had_lost_it_carries_nothing_out(
    setup: ClusterSetup,
) -> None:
    """We are back before the one that we left is closed."""
    setup.ask_for_two_together(b"{a}1")
    setup.truth.nodes[0].lines[-1].cut()
    for there in ADDRESSES[1:]:
        setup.truth.port_states[there] = "refused"
    setup.cluster.adopt_map(SlotMap(ADDRESSES[:2]))
    setup.all_goes_well_for_long()


def test_a_node_that_we_left_when_we_had_lost_it_is_known_at_once(
    setup: ClusterSetup,
) -> None:
    """Another connection to it may be made before the one that we left is closed."""
    (line,) = setup.truth.nodes[0].lines
    nodes = setup.cluster._nodes
    node = nodes.find(ADDRESSES[0])
    assert node is not None
    line.cut()
    setup.loop.turn()
    assert not node.connected
    nodes.retire(node)
    assert nodes.make(ADDRESSES[0]).before == node.peer


def test_a_node_that_lost_its_slots_while_we_connected_is_not_the_first() -> None:
    """No seed has slots, and the map changes under us."""
    setup = ClusterSetup()
    for tag in TAGS:
        setup.truth.move(tag, setup.truth.nodes[2])
    setup.nodes_learn_the_map()
    dials = setup.dials

    async def dial(options: Options, talk: RespProtocol, host: EventLoop) -> Line:
        if options.port == ADDRESSES[2][1]:
            slots = setup.cluster.slots
            slots.owners = [ADDRESSES[1]] * len(slots.owners)
        return await dials(options, talk, host)

    setup.dials = dial  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable, match="no slots any more"):
        setup.connects()
    setup.is_left()


def test_seeds_that_are_all_silent_are_given_up_in_time() -> None:
    """Each has a share of the time, and all of them no more than there is."""
    setup = ClusterSetup()
    begun = setup.clock.seconds
    goes_on = setup.everything_goes_its_way

    def all_goes_on() -> None:
        goes_on()
        setup.clock.seconds += STEP / 4

    setup.everything_goes_its_way = all_goes_on  # type: ignore[method-assign]
    setup.truth.port_states.update(dict.fromkeys(ADDRESSES, "silent"))
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        setup.connects()
    assert PATIENCE / 2 < setup.clock.seconds - begun < PATIENCE
    setup.is_left()


@pytest.mark.parametrize("knows", [True, False])
def test_a_slot_that_moves_while_we_connect_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, *, knows: bool
) -> None:
    """Between the map and the question whether we may hear the channels of slots."""
    setup = ClusterSetup()
    one, two, _ = setup.truth.nodes
    asked, goes_on = one._cluster, setup.everything_goes_its_way

    def cluster(line: Line, command: list[bytes]) -> bytes:
        reply = asked(line, command)
        if setup.truth.owner[b"a"] is one:
            setup.truth.move(b"a", two)
            one.view[b"a"] = two.address if knows else None  # it refuses otherwise
        return reply

    def all_goes_on() -> None:
        goes_on()
        setup.clock.seconds += STEP / 4

    monkeypatch.setattr(one, "_cluster", cluster)
    monkeypatch.setattr(setup, "everything_goes_its_way", all_goes_on)
    setup.connects()
    setup.ask(ALL_KEYS)
    setup.is_over()
