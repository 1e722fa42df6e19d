"""A clock for tests that say themselves what time it is."""

from __future__ import annotations


class StandingClock:
    """Stands still unless moved."""

    def __init__(self) -> None:
        self.seconds = 1.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.seconds
