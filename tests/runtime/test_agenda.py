"""What the keeper has planned: when it is due, and nothing that has ended."""

from __future__ import annotations

import pytest

from aiorwlock_remote.runtime.agenda import Agenda
from aiorwlock_remote.runtime.lease import Lease, State, Terms
from tests.runtime.leases import leased
from tests.standing import StandingClock


@pytest.fixture
def lease() -> Lease:
    return leased(Terms(60.0), StandingClock())


def test_it_is_due_at_its_time_and_once(lease: Lease) -> None:
    agenda = Agenda()
    due = agenda.put(lease, 5.0)
    assert agenda.next == due
    assert agenda.take(due - 0.001, 10) == []
    assert agenda.take(due, 10) == [lease]
    assert agenda.take(due, 10) == []


@pytest.mark.parametrize("how", ["released", "lost"])
def test_what_has_ended_is_not_kept(lease: Lease, how: str) -> None:
    """It may have been due in a year."""
    agenda = Agenda()
    agenda.put(lease, 3e7)
    planned = lease.kept_in
    assert planned == {lease}
    assert lease.end(State.RELEASED) if how == "released" else lease.lose("expired")
    assert planned == set()
