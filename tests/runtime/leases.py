"""Leases without a store, by a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass

from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.runtime.lease import Lease, Terms


@dataclass
class StoppedClock:
    """Goes on when the test says so."""

    at: float = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


def leased(terms: Terms, clock: StoppedClock) -> Lease:
    """Granted now, to one writer."""
    grant = Grant("t", Mode.WRITE, 1, 0, None)
    return Lease(resource("order", 1), grant, terms, clock.now(), clock)
