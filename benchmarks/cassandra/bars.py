"""What the locks on Cassandra are to reach: each bar in one line."""

from __future__ import annotations

from benchmarks.cassandra.adapters import CALLS, EAGER, FLOOR, NAIVE, OURS
from benchmarks.cassandra.scenarios import alone, crowd
from benchmarks.shared import turns
from benchmarks.shared.bars import Bar, Minimum, Of

_ours = Of(OURS)
_calls = Of(CALLS)

BARS: tuple[Bar, ...] = (
    Bar("C1", "cycle, of the floor's", _ours.ratio("C1", alone.CYCLE, FLOOR), 1.25),
    Bar(
        "C1",
        "S0's calls: cycle, of the floor's",
        _calls.ratio("C1", alone.CYCLE, FLOOR),
        1.25,
    ),
    Bar(
        "C1",
        "cycle, of the floor's, the client on one core",
        _ours.ratio("C1", alone.BOUND, FLOOR),
        1.25,
    ),
    Bar("C1", "transactions a cycle", _ours.median("C1", alone.CHANGES), 2.0),
    Minimum(
        "C2", "cycles/s, of the floor's", _ours.ratio("C2", turns.CYCLES, FLOOR), 0.8
    ),
    Minimum(
        "C2",
        "S0's calls: cycles/s, of the floor's",
        _calls.ratio("C2", turns.CYCLES, FLOOR),
        0.8,
    ),
    Minimum(
        "C3",
        "cycles/s, of a naive loop's that never pauses",
        _ours.ratio("C3", turns.CYCLES, EAGER),
        5.0,
    ),
    Minimum(
        "C3",
        "cycles/s, of a naive loop's that pauses",
        _ours.ratio("C3", turns.CYCLES, NAIVE),
        1.0,
    ),
    Bar("C3", "longest wait, of the mean wait", _ours.median("C3", turns.LONGEST), 5.0),
    Minimum(
        "C3", "every cycle its own rising fence", _ours.least("C3", turns.RISING), 1.0
    ),
    Bar(
        "C3p", "longest wait, of the mean wait", _ours.median("C3p", turns.LONGEST), 5.0
    ),
    Minimum(
        "C3p", "every cycle its own rising fence", _ours.least("C3p", turns.RISING), 1.0
    ),
    Bar(
        "C4",
        "transactions of all waiters",
        _ours.median("C4", crowd.CHANGES),
        5.0,
        "/s",
    ),
    Minimum("C4", "served of 1,000", _ours.least("C4", crowd.SERVED), 1000.0),
)
