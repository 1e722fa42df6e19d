"""What is shown of a foreign program's record, whatever stands in it."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.record import Record, Seat
from aiorwlock_remote.locks.info import doorman
from aiorwlock_remote.ports import Snapshot

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
    shown = doorman(Snapshot(resource("order", 1), Record(), Seat(value), 0, WALL))
    (holder,) = shown.holders
    assert holder.foreign
    assert holder.age == age
    assert (shown.stale(1.0) is not None) is (age >= 1.0)
