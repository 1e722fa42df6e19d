"""What the locks on Redis are to reach: each bar in one line, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.redis.adapters import BLPOP, FLOOR, MEMORY, OURS, REDIS_PY, RUEIDIS
from benchmarks.redis.figures import Figures, NotMeasured, percentile
from benchmarks.redis.scenarios import (
    alone,
    crowd,
    handover,
    kills,
    readers,
    sets,
    turns,
)

Figure = Callable[[Figures], float]


@dataclass(frozen=True)
class Bar:
    """The figure has to stay within the limit."""

    scenario: str
    what: str
    figure: Figure
    limit: float | Figure
    unit: str = ""

    at_least: ClassVar[bool] = False

    def holds(self, figure: float, limit: float) -> bool:
        """Whether the figure is on the right side."""
        return figure <= limit


@dataclass(frozen=True)
class Minimum(Bar):
    """The figure has to reach the limit."""

    at_least: ClassVar[bool] = True

    def holds(self, figure: float, limit: float) -> bool:
        """Whether the figure is on the right side."""
        return figure >= limit


@dataclass(frozen=True)
class Verdict:
    """What became of a bar; all None if it was not measured."""

    bar: Bar
    figure: float | None = None
    limit: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the figure is on the right side."""
        if self.figure is None or self.limit is None:
            return None
        return self.bar.holds(self.figure, self.limit)


def verdicts(figures: Figures) -> Iterator[Verdict]:
    """Of every bar, in the order of the list."""
    for bar in BARS:
        try:
            limit = bar.limit if isinstance(bar.limit, float) else bar.limit(figures)
            yield Verdict(bar, bar.figure(figures), limit)
        except NotMeasured:
            yield Verdict(bar)


def _of_least_floor(loop: str) -> Figure:
    # The floor has a fast and a slow state on some machines: its fastest repetition
    # is the one that nothing disturbed.
    return lambda figures: (
        figures.median("S1", alone.CYCLE, OURS, loop)
        / min(figures.values("S1", alone.CYCLE, FLOOR, loop))
    )


def _ratio(scenario: str, metric: str, to: str) -> Figure:
    return lambda figures: figures.ratio(scenario, metric, OURS, to)


def _median(scenario: str, metric: str) -> Figure:
    return lambda figures: figures.median(scenario, metric, OURS)


def _most(scenario: str, metric: str) -> Figure:
    return lambda figures: max(figures.values(scenario, metric, OURS))


def _least(scenario: str, metric: str) -> Figure:
    return lambda figures: min(figures.values(scenario, metric, OURS))


def _hand_over(per_cent: int) -> Figure:
    def figure(figures: Figures) -> float:
        ours, theirs = (
            percentile(figures.values("S3", handover.TOOK, peer), per_cent)
            for peer in (OURS, BLPOP)
        )
        return ours / theirs

    return figure


def _late(figures: Figures) -> float:
    return percentile(figures.values("S7", kills.LATE, OURS), 90)


def _drain_limit(figures: Figures) -> float:
    try:
        return max(0.35, 1.5 * figures.median("S6", crowd.DRAIN, RUEIDIS))
    except NotMeasured:  # no Go here
        return 0.35


def _readers(figures: Figures) -> float:
    many = figures.median("R", readers.MANY, OURS)
    return many / figures.median("R", readers.FEW, OURS)


def _members(figures: Figures) -> float:
    many = figures.median("M", sets.MANY, OURS)
    return many / figures.median("M", sets.FEW, OURS)


def _of_readers_and_writers(name: str) -> tuple[Bar, ...]:
    of_memory = _ratio(name, turns.CYCLES, MEMORY)
    return (
        Minimum(name, "cycles/s, of memory://'s", of_memory, 0.6),
        Minimum(name, "cycles/s", _median(name, turns.CYCLES), 1800.0),
        Bar(name, "writer's wait p99", _median(name, turns.WRITER_P99), 100.0, "ms"),
    )


BARS: tuple[Bar, ...] = (
    Bar(
        "S1", "cycle, of the floor's least repetition", _of_least_floor("asyncio"), 1.8
    ),
    Bar("S1", "cycle, of redis-py's", _ratio("S1", alone.CYCLE, REDIS_PY), 0.36),
    Bar("S1", "uvloop: cycle, of its floor's least", _of_least_floor("uvloop"), 1.9),
    Minimum("S2", "cycles/s, of the floor's", _ratio("S2", turns.CYCLES, FLOOR), 0.6),
    Bar("S3", "hand-over p50, of raw BLPOP's", _hand_over(50), 1.1),
    Bar("S3", "hand-over p95, of raw BLPOP's", _hand_over(95), 1.1),
    *(
        Minimum(
            name, "cycles/s, of raw BLPOP's", _ratio(name, turns.CYCLES, BLPOP), share
        )
        for name, share in (("S4a", 1.5), ("S4b", 0.95), ("S4d", 0.95))
    ),
    *(
        Bar(name, "requests a cycle", _median(name, turns.REQUESTS), most)
        for name, most in (("S4a", 1.2), ("S4b", 3.0), ("S4d", 3.0))
    ),
    Minimum(
        "S4a", "every cycle its own rising fence", _least("S4a", turns.RISING), 1.0
    ),
    Bar("S4a", "longest wait, of the mean wait", _median("S4a", turns.LONGEST), 5.0),
    *(
        Bar(
            name,
            "the task furthest from the mean",
            _median(name, turns.SPREAD),
            20.0,
            "%",
        )
        for name in ("S4b", "S4d")
    ),
    *_of_readers_and_writers("S5"),
    *_of_readers_and_writers("S5r"),
    Bar("S6", "requests of all waiters", _median("S6", crowd.REQUESTS), 1.0, "/s"),
    Bar("S6", "connections", _most("S6", crowd.CONNECTIONS), 2.0),
    Minimum("S6", "served of 1,000", _least("S6", crowd.SERVED), 1000.0),
    Bar("S6", "drain", _median("S6", crowd.DRAIN), _drain_limit, "s"),
    Bar("S7", "after the lease's end, p90", _late, 20.0, "ms"),
    Bar("R", "reader's cycle beside 10,000, of beside 1", _readers, 1.5),
    Bar("M", "cycle of any among 10,000, of among 10", _members, 1.5),
)
