"""What is shown of a foreign program's record, whatever stands in it."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.locks.info import lock_info
from aiorwlock_remote.ports import MIN_CLOCK_SETBACK, Snapshot

WALL = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("value", "age"),
    [
        ("t,1799999990", 10.0),
        ("t,1799999998.5", 1.5),
        ("a,b,1799999998.500", 1.5),
        ("t,1800000005", 0.0),  # its clock is ahead
        ("t", 0.0),
        ("t,", 0.0),
        ("t,soon", 0.0),
        ("t,²", 0.0),
        ("t,-1", 0.0),
        ("t,1799999998500", 0.0),  # milliseconds would be a date nobody can write
        ("t," + "9" * 400, 0.0),
    ],
)
def test_age_of_a_foreign_program(value: str, age: float) -> None:
    shown = lock_info(
        Snapshot(resource("order", 1), Doorman(), MutexRecord(value), 0, WALL)
    )
    (holder,) = shown.holders
    assert holder.foreign
    assert holder.age == age
    assert (shown.stale(1.0) is not None) is (age >= 1.0)


@pytest.mark.parametrize(
    ("updated", "now", "wall", "seconds"),
    [
        (WALL, WALL, WALL, 0.0),
        (WALL - 1, WALL, WALL, 0.0),
        (
            WALL + MIN_CLOCK_SETBACK - 1,
            WALL,
            WALL,
            0.0,
        ),  # nodes of a cluster may differ
        (WALL + MIN_CLOCK_SETBACK, WALL, WALL, 1.0),
        (WALL + 3_600_000_000, WALL, WALL, 3600.0),
        (WALL + 3_600_000_000, 5_000_000, WALL, 0.0),  # leases are counted otherwise
    ],
)
def test_a_clock_that_was_set_back(
    updated: int, now: int, wall: int, seconds: float
) -> None:
    """A record is newer than the clock; a holder that is alive would have renewed."""
    grant = Grant("t", Mode.WRITE, 1, now, now + 7_200_000_000)
    record = Doorman(grants=(grant,), updated=updated)
    shown = lock_info(Snapshot(resource("order", 1), record, None, now, wall))
    assert shown.clock_set_back == seconds
    assert (shown.stale(60.0) is not None) is (seconds > 0)
