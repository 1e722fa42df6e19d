"""What the locks on Cassandra are to reach: one bar for each goal."""

from __future__ import annotations

from benchmarks.cassandra.adapters import (
    CALLS,
    EAGER,
    FLOOR,
    NAIVE,
    OURS,
    WOKEN,
)
from benchmarks.cassandra.scenarios import (
    BOUND_CYCLE,
    CHANGES,
    CHANGES_A_CYCLE,
    CYCLE,
)
from benchmarks.harness.measures import CYCLES, HAND_OVER, SERVED, fair_bars
from benchmarks.harness.report import Bar, Figures, Minimum, Of

_ours = Of(OURS)
_calls = Of(CALLS)


def _hand_over(figures: Figures) -> float:
    """Return the hand-over in units of the floor's two transactions."""
    took = figures.median("hand-over", HAND_OVER, WOKEN)
    return took / figures.median("alone", CYCLE, FLOOR)


BARS: tuple[Bar, ...] = (
    Bar("alone", "cycle, of the floor's", _ours.ratio("alone", CYCLE, FLOOR), 1.25),
    Bar(
        "alone",
        "published calls: cycle, of the floor's",
        _calls.ratio("alone", CYCLE, FLOOR),
        1.25,
    ),
    Bar(
        "alone",
        "cycle, of the floor's, the client on one core",
        _ours.ratio("alone", BOUND_CYCLE, FLOOR),
        1.25,
    ),
    Bar("alone", "transactions a cycle", _ours.median("alone", CHANGES_A_CYCLE), 2.0),
    Minimum(
        "own-keys",
        "cycles/s, of the floor's",
        _ours.ratio("own-keys", CYCLES, FLOOR),
        0.8,
    ),
    Minimum(
        "own-keys",
        "published calls: cycles/s, of the floor's",
        _calls.ratio("own-keys", CYCLES, FLOOR),
        0.8,
    ),
    Minimum(
        "one-key",
        "cycles/s, of a naive loop's that never pauses",
        _ours.ratio("one-key", CYCLES, EAGER),
        5.0,
    ),
    Minimum(
        "one-key",
        "cycles/s, of a naive loop's that pauses",
        _ours.ratio("one-key", CYCLES, NAIVE),
        1.0,
    ),
    *fair_bars(_ours, "one-key"),
    *fair_bars(_ours, "one-key-processes"),
    Bar(
        "waiters",
        "transactions of all waiters",
        _ours.median("waiters", CHANGES),
        5.0,
        "/s",
    ),
    Minimum("waiters", "served of 1,000", _ours.least("waiters", SERVED), 1000.0),
    Bar(
        "hand-over",
        "woken over Redis: p50, of the floor's two transactions",
        _hand_over,
        2.5,
    ),
)
