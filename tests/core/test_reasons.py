"""Why a grant is gone, as its holder learns it."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    Forced,
    ForceRelease,
    NotHeld,
    Released,
    Renew,
    Renewed,
)
from aiorwlock_remote.core.doorman import MutexRecord
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, holder_of
from tests.core.resource import LEASE, READ, SECOND, WRITE, Door, ask, granted


def reason(door: Door, ticket: str) -> str:
    """Return what a holder that renews too late learns."""
    reply = door.do(Renew(((ticket, LEASE),)))
    assert isinstance(reply, Renewed)
    outcome = reply.outcomes[0]
    assert isinstance(outcome, NotHeld)
    return outcome.reason


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_reasons(mode: Mode) -> None:
    """Gone: forced. Another value: stolen. Run out: expired, whatever is there now."""
    door = Door()
    door.ask("a", mode)
    door.seat = None
    assert reason(door, "a") == "forced"
    door.ask("b", mode)
    door.seat = MutexRecord("thief,5")
    assert reason(door, "b") == "stolen"
    door.seat = None
    door.ask("c", mode)
    door.wait(LEASE)
    assert reason(door, "c") == "expired"
    door.ask("d", mode)
    door.wait(LEASE)
    door.seat = MutexRecord("thief,5")
    assert reason(door, "d") == "expired"


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_a_record_that_was_deleted(mode: Mode) -> None:
    """A doorman without fence is new, so the grant was forced away."""
    for asks in (False, True):
        door = Door()
        door.ask("a", mode)
        door.record = door.seat = None
        if asks:  # with the release, which is judged first
            told = door.release("a", ask("b", WRITE))
            assert isinstance(told, Released)
            assert (told.held, told.reason) == (False, "forced")
            assert granted(told.then[0])
        else:
            assert reason(door, "a") == "forced"
            assert door.release("a") == Released(held=False, reason="forced")


def test_a_reason_outlives_the_next_phase() -> None:
    """The next waiter enters at once; the holder asks at its next renewal."""
    door = Door()
    door.ask("a", WRITE)
    door.seat = None
    assert granted(door.ask("b", WRITE))
    assert reason(door, "a") == "forced"
    door.wait(LEASE)
    assert reason(door, "b") == "expired", "of a later phase"


def test_a_reader_that_expired_before_the_rest_was_forced() -> None:
    """Each reader learns its own reason."""
    door = Door()
    door.ask("short", READ, lease=SECOND)
    door.ask("long", READ)
    door.wait(SECOND)
    door.seat = None
    assert reason(door, "long") == "forced"
    assert reason(door, "short") == "expired"


def test_a_crowd_is_told_as_one() -> None:
    """Many readers share one note, which does not speak for a later phase."""
    door = Door()
    door.ask("g", READ, *"abcdefgh")
    door.seat = None
    assert {reason(door, ticket) for ticket in "abcdefgh"} == {"forced"}
    door.ask("late", WRITE)
    door.wait(LEASE)
    assert reason(door, "late") == "expired"


def test_void_grants_stay_void() -> None:
    """A record that reappears is removed when its holder learns of the loss."""
    door = Door()
    door.ask("w", WRITE)
    seat, door.seat = door.seat, None
    assert reason(door, "w") == "forced"
    door.seat = seat
    assert reason(door, "other") == "expired"
    assert door.seat == seat, "foreign now"
    assert reason(door, "w") == "forced"
    assert (door.holders, door.seat) == ([], None)


def test_force_removes_one_reader() -> None:
    """Holder and fence must both match."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    assert door.record is not None
    fence = door.record.last
    assert door.do(ForceRelease(holder_of("r1"), fence - 1)) == Forced(done=False)
    assert door.do(ForceRelease(holder_of("r1"), fence)) == Forced(done=True)
    assert door.do(ForceRelease(holder_of("r1"), fence)) == Forced(done=False)
    assert door.holders == ["r2"]
    assert reason(door, "r1") == "forced"
