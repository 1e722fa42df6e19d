"""Downgrade and upgrade."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    BARRED,
    HELD,
    Command,
    Conflict,
    ForceRelease,
    Granted,
    IllegalCommand,
    NotHeld,
    Refused,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.ticket import holder_of
from tests.core.resource import READ, SECOND, WRITE, Door, down, granted, last, over, up


def test_a_downgrade_starts_a_phase_and_lets_readers_join() -> None:
    """Waiting readers join; the writer behind them stays out."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("r", READ)
    door.ask("w2", WRITE)
    before = last(door)
    reply = door.do(down("w", "d"))
    assert isinstance(reply, Granted)
    assert [(g.ticket, g.mode) for g in reply.grants] == [("d", READ)]
    assert last(door) > before
    assert door.woken == ["r"]
    assert granted(door.ask("r", READ))
    assert not granted(door.ask("r2", READ))
    assert door.holders == ["d", "r"]


def test_moves_are_idempotent() -> None:
    """A repeated command finds the grant that the first one made."""
    door = Door()
    door.ask("w", WRITE)
    first = door.do(down("w", "d"))
    second = door.do(down("w", "d"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.grants == second.grants
    third = door.do(up("d", "u"))
    fourth = door.do(up("d", "u"))
    assert isinstance(third, Granted)
    assert isinstance(fourth, Granted)
    assert third.grants == fourth.grants
    assert third.grants[0].fence > first.grants[0].fence


@pytest.mark.parametrize(
    "command", [down("gone", "x"), up("gone", "x"), over("gone", "x")]
)
def test_only_a_holder_moves(command: Command) -> None:
    """A client that holds no more learns why."""
    door = Door()
    assert door.do(command) == NotHeld("forced"), "its record is gone"
    door.ask("other", WRITE)
    assert door.do(command) == NotHeld("expired")


def test_an_illegal_move_changes_nothing() -> None:
    """A reader cannot be downgraded, a writer not upgraded."""
    door = Door()
    door.ask("w", WRITE)
    before = door.record, door.seat
    with pytest.raises(IllegalCommand):
        door.do(up("w", "x"))
    assert (door.record, door.seat) == before
    door.release("w")
    door.ask("r", READ)
    before = door.record, door.seat
    with pytest.raises(IllegalCommand):
        door.do(down("r", "x"))
    assert (door.record, door.seat) == before


def test_one_reader_at_most_waits_to_be_upgraded() -> None:
    """Two upgraders would wait for each other."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    assert isinstance(door.do(up("r1", "u")), Waiting)
    assert door.do(up("r2", "v")) == Conflict()
    assert isinstance(door.do(up("r1", "u")), Waiting)
    door.release("r2")
    assert door.woken == ["r1"]
    assert granted(door.do(up("r1", "u")))
    assert door.holders == ["u"]


def test_who_does_not_wait_is_refused() -> None:
    """A refused reader holds on, and keeps no other out."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    refused = door.do(up("r1", "u", may_wait=False))
    assert isinstance(refused, Refused)
    assert refused.why == HELD
    assert granted(door.ask("r3", READ))


def test_an_upgrader_closes_joining() -> None:
    """A waiting upgrader closes the phase as a waiting writer does."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    assert not granted(door.ask("r3", READ))
    assert not granted(door.attempt("r4", READ))


@pytest.mark.parametrize("how", ["release", "force", "withdraw", "give up"])
def test_joining_reopens_when_the_upgrader_goes(how: str) -> None:
    """Waiting readers are called at once, without a poll."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.ask("r3", READ)
    commands: dict[str, Command] = {
        "force": ForceRelease(holder_of("r1"), last(door)),
        "withdraw": Withdraw("r1", READ, ("r1", "u"), keep=True),
        "give up": Withdraw("r1", READ, keep=True, upgrader="r1"),
    }
    if how == "release":
        door.release("r1")
    else:
        door.do(commands[how])
    assert door.woken == ["r3"]
    assert granted(door.ask("r3", READ))


def test_the_last_reader_goes_while_it_waits_to_be_upgraded() -> None:
    """The resource is free, and the reader it kept out is called."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.ask("r3", READ)
    door.release("r2")
    assert door.woken == ["r1"]
    door.release("r1")
    assert door.woken == ["r3"]


def test_an_upgrader_that_died_is_forgotten() -> None:
    """Its slot lives as long as a queue entry."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.wait(5 * SECOND)
    assert granted(door.ask("r3", READ))


def test_no_upgrade_during_a_lock_delay() -> None:
    """The reader whose lease ran out may still be reading."""
    door = Door()
    door.ask("stays", READ)
    door.ask("lost", READ, lease=SECOND, lock_delay=3 * SECOND)
    door.wait(SECOND)
    refused = door.do(up("stays", "u", may_wait=False))
    assert isinstance(refused, Refused)
    assert refused.why == BARRED
    assert isinstance(door.do(up("stays", "u")), Waiting)
    door.wait(3 * SECOND)
    assert granted(door.do(up("stays", "u")))


def test_admitted_readers_go_before_an_upgrade() -> None:
    """An upgrade that goes first would lock them out again and again."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("r", READ)
    door.do(down("w", "d"))
    assert isinstance(door.do(up("d", "u")), Waiting)
    assert granted(door.ask("r", READ))
    door.release("r")
    assert door.woken == ["d"]
    assert granted(door.do(up("d", "u")))


def test_a_writer_that_was_passed_by_an_upgrade_is_next() -> None:
    """Readers upgrading in turn would starve it otherwise."""
    door = Door()
    door.ask("r1", READ)
    door.ask("w", WRITE)
    door.ask("r2", READ)
    assert granted(door.do(up("r1", "u")))
    door.release("u")
    assert door.woken == ["w"]
    assert not granted(door.ask("r2", READ))
    assert granted(door.ask("w", WRITE))
    door.release("w")
    assert door.woken == ["r2"]
