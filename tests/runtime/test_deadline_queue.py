"""The keeper's plan: when it is due, and nothing stays of leases that ended before."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import Claim
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.runtime.deadline_queue import (
    MAX_EMPTY_SLOTS,
    SLOT_SECONDS,
    DeadlineQueue,
)
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms
from tests.fixed_clock import StandingClock
from tests.runtime.leases import leased

DAY = 86_400.0
CLOCK = StandingClock()
MANY = 8 * MAX_EMPTY_SLOTS


def granted(number: int) -> Lease:
    grant = Claim(f"t{number}", None).grant(Mode.WRITE, 1, 0)
    terms = LeaseTerms(lease=None, max_hold=DAY)
    return Lease(resource("order", number), grant, terms, 0.0, CLOCK)


def test_slots_that_everybody_left_are_forgotten() -> None:
    agenda = DeadlineQueue()
    for number in range(MANY):
        lease = granted(number)
        agenda.put(lease, DAY + number * SLOT_SECONDS)
        lease.end(LeaseState.RELEASED)
        assert len(agenda._due) == len(agenda._slots) <= MAX_EMPTY_SLOTS


def test_held_leases_remain_in_the_deadline_queue() -> None:
    agenda = DeadlineQueue()
    held = [granted(number) for number in range(MANY)]
    for number, lease in enumerate(held):
        agenda.put(lease, DAY + number * SLOT_SECONDS)
        if number % 2:
            lease.end(LeaseState.RELEASED)
    taken = agenda.take(2 * DAY, MANY)
    assert taken == held[::2]


def test_slots_in_use_are_not_looked_through_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agenda, sweeps = DeadlineQueue(), 0
    sweep = agenda._drop_empty_slots

    def counted() -> None:
        nonlocal sweeps
        sweeps += 1
        sweep()

    monkeypatch.setattr(agenda, "_drop_empty_slots", counted)
    for number in range(MANY):
        agenda.put(granted(number), DAY + number * SLOT_SECONDS)
    assert len(agenda._due) == MANY
    assert 0 < sweeps < 10


@pytest.fixture
def lease() -> Lease:
    return leased(LeaseTerms(60.0), StandingClock())


def test_a_lease_is_due_at_its_time_and_once(lease: Lease) -> None:
    agenda = DeadlineQueue()
    due = agenda.put(lease, 5.0)
    assert agenda.next == due
    assert agenda.take(due - 0.001, 10) == []
    assert agenda.take(due, 10) == [lease]
    assert agenda.take(due, 10) == []


@pytest.mark.parametrize("how", ["released", "lost"])
def test_ended_leases_leave_the_deadline_queue(lease: Lease, how: str) -> None:
    """It may have been due in a year."""
    agenda = DeadlineQueue()
    agenda.put(lease, 3e7)
    planned = lease.slot
    assert planned == {lease: None}
    assert (
        lease.end(LeaseState.RELEASED) if how == "released" else lease.lose("expired")
    )
    assert planned == {}
