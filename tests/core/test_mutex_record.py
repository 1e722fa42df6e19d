"""The published mutex record: what it says, and what is written there."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    BARRED,
    HELD,
    Acquire,
    Adopt,
    Claim,
    Downgrade,
    Forced,
    ForceRelease,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Upgrade,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy, holder_of
from aiorwlock_remote.core.transition import transition
from tests.core.resource import LEASE, MS, READ, SECOND, WRITE, Door, ask, granted, told


def ends(door: Door) -> int | None:
    """Return when the mutex record ends; 0 if there is none."""
    return 0 if door.seat is None else door.seat.expires


def last(door: Door) -> int:
    """Return the last fence."""
    return (door.record or Doorman()).last


def test_the_seat_follows_the_holders() -> None:
    """It has a writer's ticket or ``readers``, and the latest end of the grants."""
    door = Door()
    door.ask("w", WRITE)
    assert door.seat == MutexRecord("w,1700000001", door.now + LEASE)
    door.release("w")
    assert ends(door) == 0
    door.ask("r1", READ)
    door.ask("r2", READ, lease=2 * LEASE)
    assert door.seat == MutexRecord("readers,1700000001", door.now + 2 * LEASE)
    door.ask("r3", READ, lease=None)
    assert door.seat == MutexRecord("readers,1700000001", None)
    door.release("r3")
    door.release("r2")
    assert ends(door) == SECOND + 3 * MS + LEASE


@pytest.mark.parametrize("value", ["thief,5", "readers,5", "thief", ""])
def test_a_foreign_seat_keeps_everybody_out(value: str) -> None:
    """It is never joined and never taken over, whatever the command."""
    door = Door()
    door.seat = foreign = MutexRecord(value, None)
    commands = (
        ask("r", READ),
        ask("w", WRITE),
        Acquire((Claim("b", LEASE),), WRITE, Policy.BARGE),
        Release("r"),
        Release("readers", READ),
        Withdraw("r", READ, ("r",)),
        Renew((("r", LEASE),)),
        Downgrade("w", Claim("x", LEASE)),
        Upgrade("r", Claim("x", LEASE)),
        Adopt("w", Claim("x", LEASE)),
        ForceRelease(holder_of(value), 0),
        ForceRelease(seat="another"),
    )
    for command in commands:
        door.do(command)
        assert door.seat == foreign
        assert door.holders == []
    assert door.queue == [("w", WRITE)]


def test_the_head_keeps_its_place_and_is_told_when_the_foreign_seat_ends() -> None:
    """No other client may pass it meanwhile."""
    door = Door()
    door.seat = MutexRecord("thief,5", door.now + SECOND)
    assert told(door.ask("w1", WRITE)) == SECOND - MS
    refused = door.attempt("w2", WRITE)
    assert isinstance(refused, Refused)
    assert refused.why == HELD
    assert refused.holders == (f"foreign {holder_of('thief')}",)
    door.wait(SECOND)
    assert not granted(door.attempt("w2", WRITE))
    assert granted(door.ask("w1", WRITE))


def test_a_foreign_seat_is_forced_by_its_exact_value() -> None:
    """The value that was seen must still be in it; then the head is called."""
    door = Door()
    door.seat = MutexRecord("thief,5")
    door.ask("w", WRITE)
    assert door.do(ForceRelease(seat="thief,4")) == Forced(done=False)
    assert door.do(ForceRelease(seat="thief,5")) == Forced(done=True)
    assert door.woken == ["w"]
    assert ends(door) == 0


def test_release_after_the_record_was_lost() -> None:
    """The ticket is compared with the mutex record's; a reader has none there."""
    door = Door()
    door.ask("w", WRITE)
    door.record = None
    other = door.release("x")
    assert isinstance(other, Released)
    assert not other.held
    as_reader = door.release("w", mode=READ)
    assert isinstance(as_reader, Released)
    assert not as_reader.held
    assert door.seat is not None
    mine = door.release("w", ask("n", WRITE), mode=WRITE)
    assert isinstance(mine, Released)
    assert mine.held
    assert granted(mine.then[0])
    assert door.holders == ["n"]


def test_withdraw_after_the_record_was_lost() -> None:
    """A cancelled acquire leaves no mutex record behind either."""
    door = Door()
    door.ask("w", WRITE, lease=None)
    door.record = None
    assert door.leave("w", WRITE, "w") == Withdrawn(("w",))
    assert door.seat is None


@pytest.mark.parametrize("old", ["w", "before"])
@pytest.mark.parametrize("move", [Downgrade, Upgrade, Adopt])
def test_a_move_after_the_record_was_lost(
    move: type[Downgrade | Upgrade | Adopt], old: str
) -> None:
    """The old ticket leaves the record, or the new one if the conversion was done."""
    door = Door()
    door.ask("w", WRITE)
    door.record = None
    new = "new" if old == "w" else "w"
    assert door.do(move(old, Claim(new, LEASE))) == NotHeld("forced")
    assert door.seat is None
    assert granted(door.ask("w2", WRITE))


def test_a_renewal_after_the_record_was_lost() -> None:
    """The holder learns that its grant is gone, and the next waiter is called."""
    door = Door()
    door.ask("w", WRITE)
    door.record = None
    door.ask("w2", WRITE)
    assert door.do(Renew((("other", LEASE),))) == Renewed((NotHeld("forced"),))
    assert ends(door) != 0
    renewal = Renew((("other", LEASE), ("w", LEASE)))
    assert door.do(renewal) == Renewed((NotHeld("forced"), NotHeld("forced")))
    assert ends(door) == 0
    assert door.woken == ["w2"]


def test_readers_of_which_no_record_tells_stay() -> None:
    """They may be a foreign program's, whatever a reader of ours asks."""
    door = Door()
    door.ask("r", READ)
    seat, door.record = door.seat, None
    door.do(Renew((("r", LEASE),)))
    door.do(Adopt("r", Claim("new", LEASE)))
    assert door.release("r") == Released(held=False, reason="forced")
    assert door.seat == seat


def test_fences_rise_though_the_record_was_lost() -> None:
    """The wall clock raises them."""
    door = Door()
    door.ask("w", WRITE)
    before = last(door)
    door.record, door.seat = None, None
    door.ask("w2", WRITE)
    assert last(door) > before
    step = transition(Doorman(last=7), None, ask("w", WRITE), 10, 3)
    assert step.record.last == 8, "by one, if the clock lags"


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_lock_delay_bars_after_expiry(mode: Mode) -> None:
    """No client enters before, although the store has dropped the mutex record."""
    door = Door()
    door.ask("a", mode, lock_delay=3 * SECOND)
    door.wait(LEASE)
    assert told(door.ask("r", READ)) == 3 * SECOND - MS
    refused = door.attempt("w", WRITE)
    assert isinstance(refused, Refused)
    assert refused.why == BARRED
    door.wait(3 * SECOND)
    assert not granted(door.attempt("w", WRITE)), "a reader waits"
    assert granted(door.ask("r", READ))


def test_lock_delay_does_not_bar_after_a_release() -> None:
    """Nor after a conversion or a forced release."""
    door = Door()
    door.ask("a", WRITE, lock_delay=3 * SECOND)
    door.release("a")
    assert granted(door.ask("b", WRITE, lock_delay=3 * SECOND))
    assert door.record is not None
    door.do(ForceRelease(holder_of("b"), door.record.last))
    assert granted(door.ask("c", WRITE))


def test_another_boot_ends_everything_but_the_fence() -> None:
    """A store of one host drops grants and queue after a boot."""
    door = Door()
    door.ask("w", WRITE, lease=None)
    door.ask("w2", WRITE)
    assert door.record is not None
    last = door.record.last
    door.record = door.record.after_reboot()
    assert (door.holders, door.queue, door.record.last) == ([], [], last)
    assert granted(door.ask("w3", WRITE)), "its seat is still known as ours"
