"""A lease ends once, and its deadline only moves away."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.core.timing import MAX_SECONDS
from aiorwlock_remote.runtime import event_loop
from aiorwlock_remote.runtime.lease import (
    Lease,
    LeaseState,
    LeaseTerms,
    default_margin,
    local_deadline,
)
from tests.fixed_clock import StandingClock
from tests.runtime.leases import leased


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def lease(clock: StandingClock) -> Lease:
    return leased(LeaseTerms(30.0), clock)


@given(st.floats(0.2, MAX_SECONDS))
def test_a_holder_stops_before_the_store_does(lease: float) -> None:
    """The margin is taken off, and a renewal is due well before."""
    assert default_margin(lease) >= max(0.05, lease / 100)
    got = leased(LeaseTerms(lease), StandingClock())
    assert got.deadline == local_deadline(got.since, lease, None)
    assert got.renew_due < got.deadline < got.since + lease
    assert local_deadline(100.0, lease, 0.0) == 100.0 + lease


def test_a_lease_ends_once_and_its_loss_is_reported_once(lease: Lease) -> None:
    reported: list[Lease] = []
    lease.on_loss = reported.append
    assert lease.lose("forced")
    assert not lease.lose("expired")
    assert not lease.end(LeaseState.RELEASED)
    assert (lease.state, lease.reason) == (LeaseState.LOST, "forced")
    assert reported == [lease]


def test_a_released_lease_is_not_lost(lease: Lease, clock: StandingClock) -> None:
    reported: list[Lease] = []
    lease.on_loss = reported.append
    assert lease.end(LeaseState.RELEASED)
    assert not lease.end(LeaseState.DETACHED)
    clock.seconds += 60
    assert not lease.expired()
    assert lease.state is LeaseState.RELEASED
    assert reported == []


def test_a_late_reply_brings_the_deadline_no_nearer(
    lease: Lease, clock: StandingClock
) -> None:
    sent_at = clock.now()
    clock.seconds += 10
    lease.renewed(clock.now(), 30.0)
    deadline = lease.deadline
    lease.renewed(sent_at, 30.0)
    assert lease.deadline == deadline
    lease.renewed(clock.now(), 1.0)
    assert lease.deadline == deadline


def test_a_lease_under_conversion_is_not_taken_for_lost(lease: Lease) -> None:
    with lease.moving_to("new"):
        lease.gone("forced")
        assert lease.reason is None
    lease.gone("forced")
    assert lease.reason == "forced"


def test_a_lease_runs_on_while_the_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the store; Linux' monotonic clock stands still then."""
    chosen = getattr(time, "CLOCK_BOOTTIME", None)
    assert chosen == event_loop._BOOTTIME
    number = 7 if chosen is None else chosen
    shown = {number: 60.0}
    monkeypatch.setattr(event_loop, "_BOOTTIME", number)
    monkeypatch.setattr(time, "clock_gettime", shown.__getitem__)
    clock = event_loop.SystemClock()
    lease = leased(LeaseTerms(30.0), clock)
    assert not lease.expired()
    shown[number] += 30.0
    assert lease.expired()
