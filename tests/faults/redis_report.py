"""What the cancellation probe found, and what of it must not be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.faults.redis_seats import Left


@dataclass
class Report:
    """What the probe found. ``phases``: where the cancellations struck."""

    phases: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    swallowed: int = 0
    overlaps: int = 0
    left: list[dict[str, Left]] = field(default_factory=list)
    connections: int = 0  # that ended before their Locks was closed

    @property
    def cancels(self) -> int:
        """Cancellations that struck while there was something to lose."""
        return self.phases.total() - self.phases["after"]

    def faults(self) -> list[str]:
        """What must not be, in words; empty: all is well."""
        faults = [f"left behind: {seats}" for seats in self.left]
        if self.swallowed:
            faults.append(f"swallowed: {self.swallowed}")
        if self.overlaps:
            faults.append(f"held by two: {self.overlaps}")
        if self.connections:
            faults.append(f"connections lost: {self.connections}")
        return faults
