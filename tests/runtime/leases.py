"""Leases without a store, by a clock that stands still."""

from __future__ import annotations

from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.lease import Lease, LeaseTerms


def leased(terms: LeaseTerms, clock: Clock) -> Lease:
    """Granted now, to one writer."""
    grant = Grant("t", Mode.WRITE, 1, 0, None)
    return Lease(resource("order", 1), grant, terms, clock.now(), clock)
