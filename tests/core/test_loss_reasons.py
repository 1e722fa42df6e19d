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
from tests.core.resource import LEASE, READ, SECOND, WRITE, OneLock, ask, granted


def reason(lock: OneLock, ticket: str) -> str:
    """Return what a holder that renews too late learns."""
    reply = lock.do(Renew(((ticket, LEASE),)))
    assert isinstance(reply, Renewed)
    outcome = reply.outcomes[0]
    assert isinstance(outcome, NotHeld)
    return outcome.reason


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_reasons(mode: Mode) -> None:
    """Gone: forced. Another value: stolen. Run out: expired, whatever is there now."""
    lock = OneLock()
    lock.ask("a", mode)
    lock.seat = None
    assert reason(lock, "a") == "forced"
    lock.ask("b", mode)
    lock.seat = MutexRecord("thief,5")
    assert reason(lock, "b") == "stolen"
    lock.seat = None
    lock.ask("c", mode)
    lock.wait(LEASE)
    assert reason(lock, "c") == "expired"
    lock.ask("d", mode)
    lock.wait(LEASE)
    lock.seat = MutexRecord("thief,5")
    assert reason(lock, "d") == "expired"


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_a_record_that_was_deleted(mode: Mode) -> None:
    """A doorman without fence is new, so the grant was forced away."""
    for asks in (False, True):
        lock = OneLock()
        lock.ask("a", mode)
        lock.record = lock.seat = None
        if asks:  # with the release, which is judged first
            reply = lock.release("a", ask("b", WRITE))
            assert isinstance(reply, Released)
            assert (reply.held, reply.reason) == (False, "forced")
            assert granted(reply.then[0])
        else:
            assert reason(lock, "a") == "forced"
            assert lock.release("a") == Released(held=False, reason="forced")


def test_a_reason_outlives_the_next_phase() -> None:
    """The next waiter enters at once; the holder asks at its next renewal."""
    lock = OneLock()
    lock.ask("a", WRITE)
    lock.seat = None
    assert granted(lock.ask("b", WRITE))
    assert reason(lock, "a") == "forced"
    lock.wait(LEASE)
    assert reason(lock, "b") == "expired", "of a later phase"


def test_a_reader_that_expired_before_the_rest_was_forced() -> None:
    """Each reader learns its own reason."""
    lock = OneLock()
    lock.ask("short", READ, lease=SECOND)
    lock.ask("long", READ)
    lock.wait(SECOND)
    lock.seat = None
    assert reason(lock, "long") == "forced"
    assert reason(lock, "short") == "expired"


def test_the_loss_of_many_readers_is_one_note() -> None:
    """Many readers share one note, which does not speak for a later phase."""
    lock = OneLock()
    lock.ask("g", READ, *"abcdefgh")
    lock.seat = None
    assert {reason(lock, ticket) for ticket in "abcdefgh"} == {"forced"}
    lock.ask("late", WRITE)
    lock.wait(LEASE)
    assert reason(lock, "late") == "expired"


def test_void_grants_stay_void() -> None:
    """A record that reappears is removed when its holder learns of the loss."""
    lock = OneLock()
    lock.ask("w", WRITE)
    seat, lock.seat = lock.seat, None
    assert reason(lock, "w") == "forced"
    lock.seat = seat
    assert reason(lock, "other") == "expired"
    assert lock.seat == seat, "foreign now"
    assert reason(lock, "w") == "forced"
    assert (lock.holders, lock.seat) == ([], None)


def test_force_removes_one_reader() -> None:
    """Holder and fence must both match."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    assert lock.record is not None
    fence = lock.record.last
    assert lock.do(ForceRelease(holder_of("r1"), fence - 1)) == Forced(done=False)
    assert lock.do(ForceRelease(holder_of("r1"), fence)) == Forced(done=True)
    assert lock.do(ForceRelease(holder_of("r1"), fence)) == Forced(done=False)
    assert lock.holders == ["r2"]
    assert reason(lock, "r1") == "forced"
