"""What the keeper has planned: when it is due, and nothing that has ended."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.record import Grant, Who
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.runtime.agenda import Agenda
from aiorwlock_remote.runtime.clock import SystemClock
from aiorwlock_remote.runtime.lease import Lease, State, Terms


def leased() -> Lease:
    grant = Grant("t", Mode.WRITE, 1, 0, 60_000_000, Who())
    return Lease(resource("order", 1), grant, Terms(60.0), 0.0, SystemClock())


def test_it_is_due_at_its_time_and_once() -> None:
    agenda, lease = Agenda(), leased()
    due = agenda.put(lease, 5.0)
    assert agenda.next == due
    assert agenda.take(due - 0.001, 10) == []
    assert agenda.take(due, 10) == [lease]
    assert agenda.take(due, 10) == []


@pytest.mark.parametrize("how", ["released", "lost"])
def test_what_has_ended_is_not_kept(how: str) -> None:
    """It may have been due in a year."""
    agenda, lease = Agenda(), leased()
    agenda.put(lease, 3e7)
    planned = lease.kept_in
    assert planned == {lease}
    assert lease.end(State.RELEASED) if how == "released" else lease.lose("expired")
    assert planned == set()
