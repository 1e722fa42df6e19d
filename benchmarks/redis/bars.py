"""What the locks on Redis are to reach: one bar for each goal."""

from __future__ import annotations

from benchmarks.harness.measures import (
    CONNECTIONS,
    CYCLES,
    DRAIN,
    HAND_OVER,
    LONGEST,
    RISING,
    SERVED,
    SPREAD,
)
from benchmarks.harness.report import Bar, Figures, Minimum, NotMeasured, Of
from benchmarks.redis.adapters import BLPOP, FLOOR, MEMORY, OURS, REDIS_PY, RUEIDIS
from benchmarks.redis.scenarios import (
    ANY_OF_FEW,
    ANY_OF_MANY,
    CYCLE,
    HELD_SHARE,
    LATE,
    READER_BESIDE_FEW,
    READER_BESIDE_MANY,
    REQUESTS,
    REQUESTS_A_CYCLE,
    WRITER_P99,
)

_ours = Of(OURS)


def _cycle_on_uvloop(figures: Figures) -> float:
    """Return the cycle in units of the floor's on the same loop."""
    ours = figures.median("alone", CYCLE, OURS, "uvloop")
    return ours / figures.median("alone", CYCLE, FLOOR, "uvloop")


def _drain_limit(figures: Figures) -> float:
    try:
        return max(0.35, 1.5 * figures.median("waiters", DRAIN, RUEIDIS))
    except NotMeasured:  # there is no Go on this machine
        return 0.35


def _readers(figures: Figures) -> float:
    many = figures.median("many-readers", READER_BESIDE_MANY, OURS)
    return many / figures.median("many-readers", READER_BESIDE_FEW, OURS)


def _members(figures: Figures) -> float:
    many = figures.median("any-of-set", ANY_OF_MANY, OURS)
    return many / figures.median("any-of-set", ANY_OF_FEW, OURS)


def _of_readers_and_writers(name: str) -> tuple[Bar, ...]:
    of_memory = _ours.ratio(name, CYCLES, MEMORY)
    return (
        Minimum(name, "cycles/s, of memory://'s", of_memory, 0.6),
        Minimum(name, "cycles/s", _ours.median(name, CYCLES), 1800.0),
        Bar(name, "writer's wait p99", _ours.median(name, WRITER_P99), 100.0, "ms"),
    )


def _hand_over(per_cent: int, peer: str, name: str, most: float) -> Bar:
    figure = _ours.percentile("hand-over", HAND_OVER, per_cent, peer)
    return Bar("hand-over", f"p{per_cent}, of {name}'s", figure, most)


BARS: tuple[Bar, ...] = (
    Bar("alone", "cycle, of the floor's", _ours.ratio("alone", CYCLE, FLOOR), 2.2),
    Bar("alone", "cycle, of redis-py's", _ours.ratio("alone", CYCLE, REDIS_PY), 0.62),
    Bar("alone", "uvloop: cycle, of its floor's", _cycle_on_uvloop, 1.9),
    Minimum(
        "own-keys",
        "cycles/s, of the floor's",
        _ours.ratio("own-keys", CYCLES, FLOOR),
        0.47,
    ),
    _hand_over(50, BLPOP, "raw BLPOP", 2.0),
    _hand_over(95, BLPOP, "raw BLPOP", 2.2),
    _hand_over(50, RUEIDIS, "rueidislock", 1.2),
    *(
        Minimum(
            name, "cycles/s, of raw BLPOP's", _ours.ratio(name, CYCLES, BLPOP), share
        )
        for name, share in (
            ("one-key", 0.75),
            ("one-held-key", 0.95),
            ("one-key-processes", 0.95),
        )
    ),
    *(
        Bar(name, "requests a cycle", _ours.median(name, REQUESTS_A_CYCLE), most)
        for name, most in (
            ("one-key", 1.2),
            ("one-held-key", 1.2),
            ("one-key-processes", 3.0),
        )
    ),
    *(
        Minimum(
            name, "every cycle its own rising fence", _ours.least(name, RISING), 1.0
        )
        for name in ("one-key", "one-key-processes")
    ),
    Bar(
        "one-key",
        "longest wait, of the mean wait",
        _ours.median("one-key", LONGEST),
        5.0,
    ),
    *(
        Bar(
            name,
            "the task furthest from the mean",
            _ours.median(name, SPREAD),
            20.0,
            "%",
        )
        for name in ("one-held-key", "one-key-processes")
    ),
    *_of_readers_and_writers("mixed-tasks"),
    *_of_readers_and_writers("fixed-roles"),
    Bar(
        "waiters",
        "requests of all waiters",
        _ours.median("waiters", REQUESTS),
        1.0,
        "/s",
    ),
    Bar("waiters", "connections", _ours.most("waiters", CONNECTIONS), 2.0),
    Minimum("waiters", "served of 1,000", _ours.least("waiters", SERVED), 1000.0),
    Bar("waiters", "drain", _ours.median("waiters", DRAIN), _drain_limit, "s"),
    Bar(
        "killed-holders",
        "after the lease's end, p90",
        _ours.percentile("killed-holders", LATE, 90),
        20.0,
        "ms",
    ),
    Bar("many-readers", "reader's cycle beside 10,000, of beside 1", _readers, 1.5),
    Bar("any-of-set", "cycle of any among 10,000, of among 10", _members, 1.5),
    Bar(
        "held-locks",
        "10,000 locks held",
        _ours.median("held-locks", HELD_SHARE),
        2.0,
        "% of a core",
    ),
)
