"""What the story of a cluster has brought to light, scene by scene."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.backends.redis.cluster.slots import SlotMap
from aiorwlock_remote.backends.redis.connection.connection import CLOSE_TIMEOUT
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop
from tests.backends.redis.cluster_state_machine import ADDRESSES, ALL_KEYS, Scene
from tests.backends.redis.fake_cluster import TAGS
from tests.backends.redis.fake_server import Line
from tests.backends.redis.virtual_time import PATIENCE, STEP


@pytest.fixture
def scene() -> Iterator[Scene]:
    """At its end all must be as it must be in the story."""
    scene = Scene()
    scene.connects()
    yield scene
    scene.is_over()


def test_a_subscription_that_could_not_be_sent_in_time_is_sent_again(
    scene: Scene,
) -> None:
    """Else nobody would hear, for as long as the next connection lasts."""
    scene.nothing_is_answered_for_long()


def test_a_channel_is_heard_again_where_its_slot_came_back(scene: Scene) -> None:
    """Its node told that no more comes; the map never showed it."""
    one, _, three = scene.truth.nodes
    scene.ask([b"{a}1"])
    scene.all_goes_well()
    scene.truth.move(b"a", three)
    scene.truth.move(b"a", one)


def test_a_channel_that_a_node_refused_is_heard_there_later(scene: Scene) -> None:
    one, _, three = scene.truth.nodes
    scene.truth.move(b"a", three)
    one.view[b"a"] = one.address  # it believes so
    scene.ask([b"{a}1"])
    scene.all_goes_well()
    scene.truth.move(b"a", one)


def test_who_asks_is_reason_to_look_for_a_node_that_is_away(scene: Scene) -> None:
    """It has another address, and the task that looked for it was cancelled."""
    scene.ask(ALL_KEYS)
    scene.all_goes_well()
    away = scene.truth.nodes[2]
    away.address = ADDRESSES[-1]
    away.restart()
    scene.loop.turn()
    scene.every_task_is_cancelled()


def test_what_is_refused_by_a_node_that_we_leave_is_answered(scene: Scene) -> None:
    scene.we_close()
    scene.ask([b"{b}"])
    scene.truth.move(b"b", scene.truth.nodes[0])
    scene.all_goes_well()


def test_what_is_refused_by_a_node_that_was_too_slow_is_answered(scene: Scene) -> None:
    """While its connection is being closed."""
    scene.ask([b"{a}1"])
    scene.loop.turn()
    scene.truth.move(b"a", scene.truth.nodes[2])
    scene.we_close()
    for _ in range(6):
        scene.clock.seconds += STEP
        scene.loop.turn()
    scene.all_goes_well()


def test_what_waits_for_a_silent_node_when_we_close_is_answered(scene: Scene) -> None:
    """It was refused; whether that node has more to say is not known yet."""
    scene.ask([b"{a}1"])
    scene.loop.turn()
    scene.truth.move(b"a", scene.truth.nodes[2])
    (line,) = (line for line in scene.truth.nodes[0].lines if line.open)
    while line.carry_out():
        pass
    line.deliver(len(line.answers))
    scene.we_close()
    scene.patience_ends()
    assert all(asked.answers for asked in scene.asked)


@pytest.mark.parametrize("further", [False, True])
def test_what_must_go_goes_where_its_slot_went_while_we_closed(
    scene: Scene, *, further: bool
) -> None:
    """The map comes before the connection to that node, which has lost it again."""
    _, two, three = scene.truth.nodes
    scene.truth.move(b"a", three)
    scene.truth.doors[three.address] = "silent"
    scene.ask([b"{a}1"], must_go=True)
    scene.we_close()
    scene.all_goes_well()
    if further:
        scene.truth.move(b"a", two)
    scene.truth.doors.clear()
    for _ in range(5):
        scene.clock.seconds += STEP / 2
        scene.all_goes_well()
    assert scene.asked[-1].pending.result() == 0


def test_a_call_behind_one_whose_script_was_forgotten_does_not_pass_it(
    scene: Scene,
) -> None:
    """The slot went in between: one is to be sent again here, the other elsewhere."""
    one, two, _ = scene.truth.nodes
    one.forget()
    scene.ask([b"{a}1", b"{a}1"])
    scene.loop.turn(1)
    (line,) = one.lines
    while not line.answers.count(b"NOSCRIPT"):
        line.carry_out()
    scene.truth.move(b"a", two)


def test_what_a_node_that_we_leave_has_to_be_told_twice_is_answered(
    scene: Scene,
) -> None:
    """It had forgotten the script, and lost the slot when it knew it again."""
    one, two, _ = scene.truth.nodes
    one.forget()
    scene.truth.move(b"", one)
    scene.ask([b"{a}1", b"{a}1"])
    scene.loop.turn()
    (line,) = one.lines
    while line.carry_out():
        pass
    scene.truth.move(b"a", two)
    late = SlotMap(ADDRESSES)
    late.owners = [ADDRESSES[1]] * len(late.owners)
    scene.cluster.adopt_map(late)


def test_a_node_has_not_answered_all_while_it_is_to_be_told_again(
    scene: Scene,
) -> None:
    """What comes later goes to the slot's new node when the old one is done with it."""
    one, two, _ = scene.truth.nodes
    one.forget()
    scene.ask([b"{a}1"])
    scene.loop.turn()
    late = SlotMap(ADDRESSES)
    late.owners = [ADDRESSES[1]] * len(late.owners)
    scene.cluster.adopt_map(late)
    scene.ask([b"{a}1"])
    (line,) = one.lines
    while line.carry_out():
        pass
    scene.truth.move(b"a", two)


@pytest.mark.parametrize("owner", [0, 2])
def test_a_map_that_comes_last_of_all_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    """Nothing is sent on any more; what waits for its node still does."""
    monkeypatch.setattr("random.random", float)  # the shortest pauses
    three = scene.truth.nodes[2]
    scene.truth.move(b"a", three)
    scene.truth.doors[three.address] = "refused"
    scene.ask([b"{a}1"], must_go=True)
    scene.we_close()
    scene.all_goes_well()
    scene.clock.seconds += CLOSE_TIMEOUT
    scene.loop.turn()
    late = SlotMap(ADDRESSES)
    late.owners = [ADDRESSES[owner]] * len(late.owners)
    scene.cluster.adopt_map(late)
    scene.truth.doors.clear()
    for _ in range(3):
        scene.all_goes_well()
    assert (b"{a}1", 0) in scene.truth.done


def test_who_asks_when_all_is_closed_opens_nothing(scene: Scene) -> None:
    scene.we_close()
    scene.all_goes_well()
    scene.ask_a_question(b"c", anywhere=True)
    assert isinstance(scene.asked[-1].pending.error, BackendUnavailable)


def test_closing_that_is_cancelled_closes(scene: Scene) -> None:
    """Before the tasks that close each node have taken a step."""
    scene.ask([b"{b}"])
    scene.we_close()
    scene.every_task_is_cancelled()


def test_a_node_that_we_left_carries_nothing_out_when_we_are_back(scene: Scene) -> None:
    """A map that was wrong for a moment; what it had been sent was not answered."""
    scene.ask([b"{a}1"])
    scene.loop.turn()
    wrong = SlotMap(ADDRESSES)
    wrong.owners = [ADDRESSES[2]] * len(wrong.owners)
    scene.cluster.adopt_map(wrong)
    scene.ask([b"{a}1"])
    scene.truth.nodes[0].asleep = True
    scene.patience_ends()
    scene.truth.nodes[0].asleep = False


def test_a_node_that_had_a_slot_for_a_moment_is_left_again(scene: Scene) -> None:
    """It was named by another node alone; each map that we were told is the same."""
    one, two, three = scene.truth.nodes
    scene.truth.move(b"", two)
    scene.truth.tell()
    scene.ask(ALL_KEYS)
    scene.all_goes_well_for_long()
    scene.truth.move(b"a", three)
    scene.ask([b"{a}1"])
    scene.loop.turn()
    scene.everything_goes_its_way()  # the first one names the third
    scene.loop.turn()
    scene.truth.move(b"a", one)


def test_a_key_is_heard_of_where_a_look_for_the_map_connects_us(scene: Scene) -> None:
    """The map is as it was, and nobody has asked that node for anything."""
    channel = b"__keyspace@0__:c"
    scene.listen(channel)
    scene.all_goes_well()
    one, two, three = scene.truth.nodes
    for node in (one, two):
        scene.truth.doors[node.address] = "refused"
    one.lines[-1].cut()
    scene.all_goes_well_for_long()
    assert [channel in line.channels for line in three.lines if line.open] == [True]


def test_a_node_that_we_left_when_we_had_lost_it_carries_nothing_out(
    scene: Scene,
) -> None:
    """We are back before the one that we left is closed."""
    scene.ask_for_two_together(b"{a}1")
    scene.truth.nodes[0].lines[-1].cut()
    for there in ADDRESSES[1:]:
        scene.truth.doors[there] = "refused"
    scene.cluster.adopt_map(SlotMap(ADDRESSES[:2]))
    scene.all_goes_well_for_long()


def test_a_node_that_lost_its_slots_while_we_connected_is_not_the_first() -> None:
    """No seed has slots, and the map changes under us."""
    scene = Scene()
    for tag in TAGS:
        scene.truth.move(tag, scene.truth.nodes[2])
    scene.nodes_are_told()
    dials = scene.dials

    async def dial(options: Options, talk: RespProtocol, host: EventLoop) -> Line:
        if options.port == ADDRESSES[2][1]:
            slots = scene.cluster.slots
            slots.owners = [ADDRESSES[1]] * len(slots.owners)
        return await dials(options, talk, host)

    scene.dials = dial  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable, match="no slots any more"):
        scene.connects()
    scene.is_left()


def test_seeds_that_are_all_silent_are_given_up_in_time() -> None:
    """Each has a share of the time, and all of them no more than there is."""
    scene = Scene()
    begun = scene.clock.seconds
    goes_on = scene.everything_goes_its_way

    def all_goes_on() -> None:
        goes_on()
        scene.clock.seconds += STEP / 4

    scene.everything_goes_its_way = all_goes_on  # type: ignore[method-assign]
    scene.truth.doors.update(dict.fromkeys(ADDRESSES, "silent"))
    with pytest.raises(BackendUnavailable, match="no answer in time"):
        scene.connects()
    assert PATIENCE / 2 < scene.clock.seconds - begun < PATIENCE
    scene.is_left()


@pytest.mark.parametrize("knows", [True, False])
def test_a_slot_that_moves_while_we_connect_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, *, knows: bool
) -> None:
    """Between the map and the question whether we may hear the channels of slots."""
    scene = Scene()
    one, two, _ = scene.truth.nodes
    asked, goes_on = one._cluster, scene.everything_goes_its_way

    def cluster(line: Line, command: list[bytes]) -> bytes:
        told = asked(line, command)
        if scene.truth.owner[b"a"] is one:
            scene.truth.move(b"a", two)
            one.view[b"a"] = two.address if knows else None  # it refuses otherwise
        return told

    def all_goes_on() -> None:
        goes_on()
        scene.clock.seconds += STEP / 4

    monkeypatch.setattr(one, "_cluster", cluster)
    monkeypatch.setattr(scene, "everything_goes_its_way", all_goes_on)
    scene.connects()
    scene.ask(ALL_KEYS)
    scene.is_over()
