"""What the locks on etcd are to reach: one bar for each goal."""

from __future__ import annotations

from benchmarks.etcd.adapters import AETCD, FLOOR, MESSAGE, OURS
from benchmarks.etcd.scenarios import CALLS, CALLS_A_CYCLE, CYCLE
from benchmarks.harness.measures import CYCLES, HAND_OVER, SERVED, fair_bars
from benchmarks.harness.report import Bar, Figures, Minimum, Of

_ours = Of(OURS)


def _hand_over(figures: Figures) -> float:
    took = figures.median("hand-over", HAND_OVER, OURS)
    return took / figures.median("hand-over", HAND_OVER, MESSAGE)


BARS: tuple[Bar, ...] = (
    Bar("alone", "cycle, of the floor's", _ours.ratio("alone", CYCLE, FLOOR), 1.4),
    Bar("alone", "cycle, of aetcd's", _ours.ratio("alone", CYCLE, AETCD), 1.0),
    Bar("alone", "calls a cycle", _ours.median("alone", CALLS_A_CYCLE), 2.1),
    Minimum(
        "own-keys",
        "cycles/s, of the floor's",
        _ours.ratio("own-keys", CYCLES, FLOOR),
        0.7,
    ),
    *fair_bars(_ours, "one-key-processes"),
    Bar("waiters", "calls of all waiters", _ours.median("waiters", CALLS), 5.0, "/s"),
    Minimum("waiters", "served of 1,000", _ours.least("waiters", SERVED), 1000.0),
    Bar("hand-over", "p50, of one transaction and one message", _hand_over, 2.5),
)
