"""Clients that are called but cannot be reached; and which holders are shown."""

from __future__ import annotations

from aiorwlock_remote.core.commands import Acquire, Claim, Release, Waiting
from aiorwlock_remote.core.doorman import MAX_SHOWN_HOLDERS, MutexRecord, Requester
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.transition import Step, skip_unreachable, transition
from tests.core.resource import READ, SECOND, WALL, WRITE, Door, ask


def freed(door: Door, holder: str) -> Step:
    """Return the step in which the holder leaves."""
    door.now += 1
    command = Release(holder)
    return transition(door.record, door.seat, command, door.now, WALL + door.now)


def late(step: Step, now: int) -> list[str]:
    return [p.client_id for p in step.record.queue if p.missed_claim(now)]


def test_a_writer_that_is_gone_is_passed_over_at_once() -> None:
    door = Door()
    for gate in ("w1", "w2", "w3"):
        door.ask(gate, WRITE)
    step = freed(door, "w1")
    assert step.wakes == ("w2",)
    step = skip_unreachable(step, {"w2"}, door.now, door.now)
    assert step.wakes == ("w3",)
    assert late(step, door.now) == ["w2"]
    assert [p.client_id for p in step.record.queue] == ["w2", "w3"], (
        "it keeps its order"
    )
    step = skip_unreachable(step, ("w3",), door.now, door.now)
    assert step.wakes == ()
    assert late(step, door.now) == ["w2", "w3"]


def test_readers_that_are_gone_hold_up_nobody() -> None:
    door = Door()
    door.ask("w1", WRITE)
    for gate in ("r1", "r2"):
        door.ask(gate, READ)
    door.ask("w2", WRITE)
    step = freed(door, "w1")
    assert step.wakes == ("r1", "r2")
    some = skip_unreachable(step, {"r1"}, door.now, door.now)
    assert some.wakes == (), "the other one has its window"
    assert skip_unreachable(step, {"r1", "r2"}, door.now, door.now).wakes == ("w2",)


def test_a_place_that_was_not_called_is_left_alone() -> None:
    door = Door()
    door.ask("w1", WRITE)
    door.ask("w2", WRITE)
    door.ask("w3", WRITE)
    step = skip_unreachable(freed(door, "w1"), {"w3"}, door.now, door.now)
    assert late(step, door.now) == []


def test_the_answer_stays_as_it_was() -> None:
    door = Door()
    door.ask("w1", WRITE)
    door.ask("w2", WRITE)
    step = freed(door, "w1")
    after = skip_unreachable(step, {"w2"}, door.now, door.now)
    assert (after.reply, after.seat) == (step.reply, step.seat)


def test_the_readers_shown_are_those_that_end_first() -> None:
    door = Door()
    for number in range(MAX_SHOWN_HOLDERS + 2):
        door.ask("gate", READ, f"r{number}", lease=(20 - number) * SECOND)
    door.ask("gate", READ, "never", lease=None)
    reply = door.do(ask("w", WRITE))
    assert isinstance(reply, Waiting)
    assert door.record is not None
    first = sorted(door.record.grants, key=lambda g: g.expires or WALL)[
        :MAX_SHOWN_HOLDERS
    ]
    assert reply.holders == tuple(f"read {g.holder} ?" for g in first)
    assert not reply.foreign


def test_a_foreigner_is_told_apart() -> None:
    door = Door()
    door.seat = MutexRecord("thief,5")
    reply = door.do(ask("w", WRITE))
    assert isinstance(reply, Waiting)
    assert reply.foreign
    assert reply.holders == (f"foreign {holder_of('thief')}",)


def test_a_reason_is_not_taken_for_a_foreigner() -> None:
    """Texts are for people: a holder of ours may have any words in its reason."""
    door = Door()
    who = Requester("foreign ", 1, "task", "foreign 0123456789ab")
    door.do(Acquire((Claim("t", 20 * SECOND, who),), WRITE))
    reply = door.do(ask("w", WRITE))
    assert isinstance(reply, Waiting)
    assert not reply.foreign
