"""What the locks on Redis are to reach: each bar in one line."""

from __future__ import annotations

from benchmarks.redis.adapters import BLPOP, FLOOR, MEMORY, OURS, REDIS_PY, RUEIDIS
from benchmarks.redis.scenarios import alone, crowd, kept, kills, readers, sets
from benchmarks.redis.scenarios.turns import REQUESTS, WRITER_P99
from benchmarks.shared import handover, turns
from benchmarks.shared.bars import Bar, Figure, Minimum, Of
from benchmarks.shared.figures import Figures, NotMeasured

_ours = Of(OURS)


def _of_least_floor(loop: str) -> Figure:
    # The floor has a fast and a slow state on some machines: its fastest repetition
    # is the one that nothing disturbed.
    return lambda figures: (
        figures.median("S1", alone.CYCLE, OURS, loop)
        / min(figures.values("S1", alone.CYCLE, FLOOR, loop))
    )


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
    of_memory = _ours.ratio(name, turns.CYCLES, MEMORY)
    return (
        Minimum(name, "cycles/s, of memory://'s", of_memory, 0.6),
        Minimum(name, "cycles/s", _ours.median(name, turns.CYCLES), 1800.0),
        Bar(name, "writer's wait p99", _ours.median(name, WRITER_P99), 100.0, "ms"),
    )


BARS: tuple[Bar, ...] = (
    Bar(
        "S1", "cycle, of the floor's least repetition", _of_least_floor("asyncio"), 1.8
    ),
    Bar("S1", "cycle, of redis-py's", _ours.ratio("S1", alone.CYCLE, REDIS_PY), 0.36),
    Bar("S1", "uvloop: cycle, of its floor's least", _of_least_floor("uvloop"), 1.9),
    Minimum(
        "S2", "cycles/s, of the floor's", _ours.ratio("S2", turns.CYCLES, FLOOR), 0.6
    ),
    Bar(
        "S3",
        "hand-over p50, of raw BLPOP's",
        _ours.percentile("S3", handover.TOOK, 50, BLPOP),
        1.1,
    ),
    Bar(
        "S3",
        "hand-over p95, of raw BLPOP's",
        _ours.percentile("S3", handover.TOOK, 95, BLPOP),
        1.1,
    ),
    *(
        Minimum(
            name,
            "cycles/s, of raw BLPOP's",
            _ours.ratio(name, turns.CYCLES, BLPOP),
            share,
        )
        for name, share in (("S4a", 1.5), ("S4b", 0.95), ("S4d", 0.95))
    ),
    *(
        Bar(name, "requests a cycle", _ours.median(name, REQUESTS), most)
        for name, most in (("S4a", 1.2), ("S4b", 3.0), ("S4d", 3.0))
    ),
    Minimum(
        "S4a", "every cycle its own rising fence", _ours.least("S4a", turns.RISING), 1.0
    ),
    Bar(
        "S4a", "longest wait, of the mean wait", _ours.median("S4a", turns.LONGEST), 5.0
    ),
    *(
        Bar(
            name,
            "the task furthest from the mean",
            _ours.median(name, turns.SPREAD),
            20.0,
            "%",
        )
        for name in ("S4b", "S4d")
    ),
    *_of_readers_and_writers("S5"),
    *_of_readers_and_writers("S5r"),
    Bar("S6", "requests of all waiters", _ours.median("S6", crowd.REQUESTS), 1.0, "/s"),
    Bar("S6", "connections", _ours.most("S6", crowd.CONNECTIONS), 2.0),
    Minimum("S6", "served of 1,000", _ours.least("S6", crowd.SERVED), 1000.0),
    Bar("S6", "drain", _ours.median("S6", crowd.DRAIN), _drain_limit, "s"),
    Bar(
        "S7",
        "after the lease's end, p90",
        _ours.percentile("S7", kills.LATE, 90),
        20.0,
        "ms",
    ),
    Bar("R", "reader's cycle beside 10,000, of beside 1", _readers, 1.5),
    Bar("M", "cycle of any among 10,000, of among 10", _members, 1.5),
    Bar("K", "10,000 locks held", _ours.median("K", kept.SHARE), 2.0, "% of a core"),
)
