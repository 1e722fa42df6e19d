"""``memory://`` forgets what nobody has used for long, with all that belongs to it."""

from __future__ import annotations

from aiorwlock_remote.backends.memory import SWEEP_EVERY, MemoryDatabase
from aiorwlock_remote.core.commands import Acquire, Claim, Granted
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import micros
from tests.fixed_clock import StandingClock

HOUR = 3600.0


class DatabaseSetup:
    """A memory database, and its clock."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.clock = StandingClock()

    def takes(self, name: str, lease: float | None) -> None:
        """Somebody gets it, and never gives it back."""
        claim = Claim(f"t{name}", None if lease is None else micros(lease))
        command = Acquire((claim,), Mode.WRITE, Policy.FAIR)
        step = self.database.step(resource("order", name), command, self.clock)
        assert isinstance(step.reply, Granted)

    def passes(self, seconds: float) -> None:
        """With as many steps as it takes to sweep."""
        self.clock.seconds += seconds
        now = micros(self.clock.seconds)
        for _ in range(SWEEP_EVERY):
            self.database.sweep(now, now, HOUR)


def test_seats_of_holders_that_died_go_with_their_records() -> None:
    setup = DatabaseSetup()
    for number in range(10):
        setup.takes(str(number), lease=30.0)
    setup.passes(HOUR / 2)
    assert len(setup.database.records) == len(setup.database.seats) == 10
    setup.passes(HOUR)
    assert not setup.database.records
    assert not setup.database.seats


def test_held_resources_are_not_purged() -> None:
    setup = DatabaseSetup()
    setup.takes("day", lease=24 * HOUR)
    setup.takes("for ever", lease=None)
    setup.passes(2 * HOUR)
    assert len(setup.database.records) == len(setup.database.seats) == 2
