"""Who is told that somebody queued up behind it."""

from __future__ import annotations

from aiorwlock_remote.cas.arrivals import (
    NOTIFIED_CLIENT_FIELD,
    ArrivalNotices,
    is_new_entry_only,
)
from aiorwlock_remote.core.codec import dumps, loads
from aiorwlock_remote.core.doorman import Doorman, Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace

HELD = Doorman(grants=(Grant("ticket", Mode.WRITE, 1, 1, 2),), extra=(("newer", 1),))


def test_who_enters_leaves_its_ear_and_takes_it_along() -> None:
    ours, theirs = ArrivalNotices("0a"), ArrivalNotices("0b")
    ours.hears = True
    entered = ours.turned(HELD)
    assert ours.behind(entered) is None
    assert theirs.behind(loads(dumps(entered))) == "0a"
    left = ours.turned(replace(entered, grants=()))
    assert theirs.behind(left) is None
    assert left.extra == entered.extra[:1] == HELD.extra


def test_who_cannot_be_told_takes_the_last_ones_away() -> None:
    """Who was thrown out must not be told for ever."""
    ours, theirs = ArrivalNotices("0a"), ArrivalNotices("0b")
    ours.hears = True
    taken_over = theirs.turned(ours.turned(HELD))
    assert taken_over == HELD
    assert theirs.turned(replace(HELD, extra=())).extra == ()


def test_who_was_pushed_the_grant_is_told() -> None:
    """Not the process whose step pushed it. It waited, so it listens."""
    ours, theirs = ArrivalNotices("0a"), ArrivalNotices("0b")
    ours.hears = True
    pushed = ours.turned(HELD, "0b")
    assert ours.behind(pushed) == "0b"
    assert theirs.behind(pushed) is None


def test_what_is_no_gate_is_nobody() -> None:
    for ear in (None, 7, "", "a b", "ä", "0" * 33, ["0a"], "0a'"):
        assert (
            ArrivalNotices("0b").behind(
                replace(HELD, extra=((NOTIFIED_CLIENT_FIELD, ear),))
            )
            is None
        )


def test_only_a_new_place_is_told() -> None:
    come = replace(HELD, number=1)
    assert is_new_entry_only(HELD, come)
    assert not is_new_entry_only(None, come)
    assert not is_new_entry_only(come, come)  # kept
    assert not is_new_entry_only(replace(HELD, grants=()), come)  # and in
    assert not is_new_entry_only(HELD, replace(come, grants=()))  # and out
    idle = Doorman()
    assert not is_new_entry_only(idle, replace(idle, number=1))  # behind a foreign seat
