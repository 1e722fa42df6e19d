"""Leases without a store, by a clock that stands still."""

from __future__ import annotations

from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.runtime.lease import Lease, LeaseTerms
from tests.fixed_clock import StandingClock


def leased(terms: LeaseTerms, clock: StandingClock) -> Lease:
    """Granted now, to one writer."""
    grant = Grant("t", Mode.WRITE, 1, 0, None)
    return Lease(resource("order", 1), grant, terms, clock.now(), clock)
