"""Which holder learns that another client has queued up."""

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


def test_a_holder_leaves_its_arrival_channel_and_takes_it_along() -> None:
    ours, theirs = ArrivalNotices("0a"), ArrivalNotices("0b")
    ours.hears = True
    entered = ours.turned(HELD)
    assert ours.behind(entered) is None
    assert theirs.behind(loads(dumps(entered))) == "0a"
    left = ours.turned(replace(entered, grants=()))
    assert theirs.behind(left) is None
    assert left.extra == entered.extra[:1] == HELD.extra


def test_a_holder_that_cannot_be_notified_removes_the_last_one() -> None:
    """A client whose grant was broken must not be notified for ever."""
    ours, theirs = ArrivalNotices("0a"), ArrivalNotices("0b")
    ours.hears = True
    taken_over = theirs.turned(ours.turned(HELD))
    assert taken_over == HELD
    assert theirs.turned(replace(HELD, extra=())).extra == ()


def test_the_client_of_a_pushed_grant_is_notified() -> None:
    """Not the process whose step pushed it. It waited, so it listens."""
    ours, theirs = ArrivalNotices("0a"), ArrivalNotices("0b")
    ours.hears = True
    pushed = ours.turned(HELD, "0b")
    assert ours.behind(pushed) == "0b"
    assert theirs.behind(pushed) is None


def test_a_malformed_client_id_is_nobody() -> None:
    for channel in (None, 7, "", "a b", "ä", "0" * 33, ["0a"], "0a'"):
        assert (
            ArrivalNotices("0b").behind(
                replace(HELD, extra=((NOTIFIED_CLIENT_FIELD, channel),))
            )
            is None
        )


def test_only_a_new_queue_entry_is_announced() -> None:
    come = replace(HELD, number=1)
    assert is_new_entry_only(HELD, come)
    assert not is_new_entry_only(None, come)
    assert not is_new_entry_only(come, come)  # kept
    assert not is_new_entry_only(replace(HELD, grants=()), come)  # and in
    assert not is_new_entry_only(HELD, replace(come, grants=()))  # and out
    idle = Doorman()
    assert not is_new_entry_only(idle, replace(idle, number=1))  # behind a foreign seat
