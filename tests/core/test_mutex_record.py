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
from tests.core.resource import (
    LEASE,
    MS,
    READ,
    SECOND,
    WRITE,
    OneLock,
    ask,
    granted,
    retry_after,
)


def ends(lock: OneLock) -> int | None:
    """Return when the mutex record ends; 0 if there is none."""
    return 0 if lock.seat is None else lock.seat.expires


def last(lock: OneLock) -> int:
    """Return the last fence."""
    return (lock.record or Doorman()).last


def test_the_seat_follows_the_holders() -> None:
    """It has a writer's ticket or ``readers``, and the latest end of the grants."""
    lock = OneLock()
    lock.ask("w", WRITE)
    assert lock.seat == MutexRecord("w,1700000001", lock.now + LEASE)
    lock.release("w")
    assert ends(lock) == 0
    lock.ask("r1", READ)
    lock.ask("r2", READ, lease=2 * LEASE)
    assert lock.seat == MutexRecord("readers,1700000001", lock.now + 2 * LEASE)
    lock.ask("r3", READ, lease=None)
    assert lock.seat == MutexRecord("readers,1700000001", None)
    lock.release("r3")
    lock.release("r2")
    assert ends(lock) == SECOND + 3 * MS + LEASE


@pytest.mark.parametrize("value", ["thief,5", "readers,5", "thief", ""])
def test_a_foreign_seat_keeps_everybody_out(value: str) -> None:
    """It is never joined and never taken over, whatever the command."""
    lock = OneLock()
    lock.seat = foreign = MutexRecord(value, None)
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
        lock.do(command)
        assert lock.seat == foreign
        assert lock.holders == []
    assert lock.queue == [("w", WRITE)]


def test_the_head_keeps_its_entry_and_learns_when_the_foreign_record_ends() -> None:
    """No other client may pass it meanwhile."""
    lock = OneLock()
    lock.seat = MutexRecord("thief,5", lock.now + SECOND)
    assert retry_after(lock.ask("w1", WRITE)) == SECOND - MS
    refused = lock.attempt("w2", WRITE)
    assert isinstance(refused, Refused)
    assert refused.why == HELD
    assert refused.holders == (f"foreign {holder_of('thief')}",)
    lock.wait(SECOND)
    assert not granted(lock.attempt("w2", WRITE))
    assert granted(lock.ask("w1", WRITE))


def test_a_foreign_seat_is_forced_by_its_exact_value() -> None:
    """The value that was seen must still be in it; then the head is called."""
    lock = OneLock()
    lock.seat = MutexRecord("thief,5")
    lock.ask("w", WRITE)
    assert lock.do(ForceRelease(seat="thief,4")) == Forced(done=False)
    assert lock.do(ForceRelease(seat="thief,5")) == Forced(done=True)
    assert lock.woken == ["w"]
    assert ends(lock) == 0


def test_release_after_the_record_was_lost() -> None:
    """The ticket is compared with the mutex record's; a reader has none there."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.record = None
    other = lock.release("x")
    assert isinstance(other, Released)
    assert not other.held
    as_reader = lock.release("w", mode=READ)
    assert isinstance(as_reader, Released)
    assert not as_reader.held
    assert lock.seat is not None
    mine = lock.release("w", ask("n", WRITE), mode=WRITE)
    assert isinstance(mine, Released)
    assert mine.held
    assert granted(mine.then[0])
    assert lock.holders == ["n"]


def test_withdraw_after_the_record_was_lost() -> None:
    """A cancelled acquire leaves no mutex record behind either."""
    lock = OneLock()
    lock.ask("w", WRITE, lease=None)
    lock.record = None
    assert lock.leave("w", WRITE, "w") == Withdrawn(("w",))
    assert lock.seat is None


@pytest.mark.parametrize("old", ["w", "before"])
@pytest.mark.parametrize("move", [Downgrade, Upgrade, Adopt])
def test_a_move_after_the_record_was_lost(
    move: type[Downgrade | Upgrade | Adopt], old: str
) -> None:
    """The old ticket leaves the record, or the new one if the conversion was done."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.record = None
    new = "new" if old == "w" else "w"
    assert lock.do(move(old, Claim(new, LEASE))) == NotHeld("forced")
    assert lock.seat is None
    assert granted(lock.ask("w2", WRITE))


def test_a_renewal_after_the_record_was_lost() -> None:
    """The holder learns that its grant is gone, and the next waiter is called."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.record = None
    lock.ask("w2", WRITE)
    assert lock.do(Renew((("other", LEASE),))) == Renewed((NotHeld("forced"),))
    assert ends(lock) != 0
    renewal = Renew((("other", LEASE), ("w", LEASE)))
    assert lock.do(renewal) == Renewed((NotHeld("forced"), NotHeld("forced")))
    assert ends(lock) == 0
    assert lock.woken == ["w2"]


def test_readers_of_which_no_record_tells_stay() -> None:
    """They may be a foreign program's, whatever a reader of ours asks."""
    lock = OneLock()
    lock.ask("r", READ)
    seat, lock.record = lock.seat, None
    lock.do(Renew((("r", LEASE),)))
    lock.do(Adopt("r", Claim("new", LEASE)))
    assert lock.release("r") == Released(held=False, reason="forced")
    assert lock.seat == seat


def test_fences_rise_though_the_record_was_lost() -> None:
    """The wall clock raises them."""
    lock = OneLock()
    lock.ask("w", WRITE)
    before = last(lock)
    lock.record, lock.seat = None, None
    lock.ask("w2", WRITE)
    assert last(lock) > before
    step = transition(Doorman(last=7), None, ask("w", WRITE), 10, 3)
    assert step.record.last == 8, "by one, if the clock lags"


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_lock_delay_bars_after_expiry(mode: Mode) -> None:
    """No client enters before, although the store has dropped the mutex record."""
    lock = OneLock()
    lock.ask("a", mode, lock_delay=3 * SECOND)
    lock.wait(LEASE)
    assert retry_after(lock.ask("r", READ)) == 3 * SECOND - MS
    refused = lock.attempt("w", WRITE)
    assert isinstance(refused, Refused)
    assert refused.why == BARRED
    lock.wait(3 * SECOND)
    assert not granted(lock.attempt("w", WRITE)), "a reader waits"
    assert granted(lock.ask("r", READ))


def test_nothing_is_offered_during_a_lock_delay() -> None:
    """An offer to a writer's entry with a ticket would be a grant."""
    lock = OneLock()
    lock.ask("dead", WRITE, lease=SECOND, lock_delay=SECOND)
    lock.ask("w", WRITE, push=True)
    lock.wait(SECOND)
    assert not granted(lock.ask("r", READ)), "this step sees the end of the grant"
    assert (lock.woken, lock.pushed, lock.holders) == ([], None, [])
    lock.wait(SECOND)
    assert granted(lock.ask("w", WRITE, push=True))


def test_a_later_expiry_shortens_no_lock_delay() -> None:
    """Of two readers the first to expire had the longer one."""
    lock = OneLock()
    lock.ask("long", READ, lease=SECOND, lock_delay=10 * SECOND)
    lock.ask("short", READ, lease=2 * SECOND, lock_delay=SECOND)
    lock.wait(SECOND + SECOND // 2)
    assert not granted(lock.attempt("a", WRITE)), "the first has expired"
    lock.wait(SECOND)
    assert not granted(lock.attempt("a", WRITE)), "the second has expired"
    lock.wait(6 * SECOND)
    assert not granted(lock.attempt("b", WRITE))
    lock.wait(3 * SECOND)
    assert granted(lock.attempt("c", WRITE))


def test_lock_delay_does_not_bar_after_a_release() -> None:
    """Nor after a conversion or a forced release."""
    lock = OneLock()
    lock.ask("a", WRITE, lock_delay=3 * SECOND)
    lock.release("a")
    assert granted(lock.ask("b", WRITE, lock_delay=3 * SECOND))
    assert lock.record is not None
    lock.do(ForceRelease(holder_of("b"), lock.record.last))
    assert granted(lock.ask("c", WRITE))


def test_another_boot_ends_everything_but_the_fence() -> None:
    """A store of one host drops grants and queue after a boot."""
    lock = OneLock()
    lock.ask("w", WRITE, lease=None)
    lock.ask("w2", WRITE)
    assert lock.record is not None
    last = lock.record.last
    lock.record = lock.record.after_reboot()
    assert (lock.holders, lock.queue, lock.record.last) == ([], [], last)
    assert granted(lock.ask("w3", WRITE)), "its seat is still known as ours"
