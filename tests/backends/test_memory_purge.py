"""``memory://`` forgets what nobody has used for long, with all that belongs to it."""

from __future__ import annotations

from aiorwlock_remote.backends.memory import SWEEP_EVERY, MemoryDatabase
from aiorwlock_remote.core.commands import Acquire, Claim, Granted
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import micros
from tests.fixed_clock import StandingClock

HOUR = 3600.0


class Scene:
    """A shelf, and what time it is."""

    def __init__(self) -> None:
        self.shelf = MemoryDatabase()
        self.clock = StandingClock()

    def takes(self, name: str, lease: float | None) -> None:
        """Somebody gets it, and never gives it back."""
        claim = Claim(f"t{name}", None if lease is None else micros(lease))
        command = Acquire((claim,), Mode.WRITE, Policy.FAIR)
        step = self.shelf.step(resource("order", name), command, self.clock)
        assert isinstance(step.reply, Granted)

    def passes(self, seconds: float) -> None:
        """With as many steps as it takes to sweep."""
        self.clock.seconds += seconds
        now = micros(self.clock.seconds)
        for _ in range(SWEEP_EVERY):
            self.shelf.sweep(now, now, HOUR)


def test_seats_of_holders_that_died_go_with_their_records() -> None:
    scene = Scene()
    for number in range(10):
        scene.takes(str(number), lease=30.0)
    scene.passes(HOUR / 2)
    assert len(scene.shelf.records) == len(scene.shelf.seats) == 10
    scene.passes(HOUR)
    assert not scene.shelf.records
    assert not scene.shelf.seats


def test_what_is_held_stays() -> None:
    scene = Scene()
    scene.takes("day", lease=24 * HOUR)
    scene.takes("for ever", lease=None)
    scene.passes(2 * HOUR)
    assert len(scene.shelf.records) == len(scene.shelf.seats) == 2
