"""What the locks are to reach on the page's machine: one bar for each goal."""

from __future__ import annotations

from benchmarks.cassandra import adapters as cassandra
from benchmarks.cassandra.scenarios import CYCLE as CASSANDRA_CYCLE
from benchmarks.harness.measures import CYCLES, HAND_OVER, LONGEST, RISING, SPREAD
from benchmarks.harness.report import Bar, Figures, Minimum, Of, Verdict, verdicts
from benchmarks.page.data import Data
from benchmarks.redis import adapters as redis
from benchmarks.redis.scenarios import CYCLE, REQUESTS_A_CYCLE
from benchmarks.sql import adapters as sql

_redis = Of(redis.OURS)
_postgresql = Of(sql.OURS)
_mariadb = Of(sql.MARIADB_OURS)
_sqlite = Of(sql.SQLITE_OURS)


def _cassandra_hand_over(figures: Figures) -> float:
    """Return the hand-over in units of the floor's two transactions."""
    took = figures.median("hand-over", HAND_OVER, cassandra.WOKEN)
    return took / figures.median("alone", CASSANDRA_CYCLE, cassandra.FLOOR)


BARS: dict[str, tuple[Bar, ...]] = {
    "redis": (
        Bar(
            "alone",
            "cycle, of the floor's",
            _redis.ratio("alone", CYCLE, redis.FLOOR),
            2.2,
        ),
        Bar(
            "alone",
            "cycle, of redis-py's",
            _redis.ratio("alone", CYCLE, redis.REDIS_PY),
            0.62,
        ),
        Minimum(
            "own-keys",
            "cycles/s, of the floor's",
            _redis.ratio("own-keys", CYCLES, redis.FLOOR),
            0.47,
        ),
        Bar(
            "hand-over",
            "p50, of raw BLPOP's",
            _redis.percentile("hand-over", HAND_OVER, 50, redis.BLPOP),
            2.0,
        ),
        Bar(
            "hand-over",
            "p95, of raw BLPOP's",
            _redis.percentile("hand-over", HAND_OVER, 95, redis.BLPOP),
            2.2,
        ),
        Bar(
            "hand-over",
            "p50, of rueidislock's",
            _redis.percentile("hand-over", HAND_OVER, 50, redis.RUEIDIS),
            1.2,
        ),
        *(
            Minimum(
                name,
                "cycles/s, of raw BLPOP's",
                _redis.ratio(name, CYCLES, redis.BLPOP),
                least,
            )
            for name, least in (
                ("one-key", 0.75),
                ("one-held-key", 0.95),
                ("one-key-processes", 0.95),
            )
        ),
        *(
            Bar(name, "the task furthest from the mean", figure, 20.0, "%")
            for name, figure in (
                (name, _redis.median(name, SPREAD))
                for name in ("one-held-key", "one-key-processes")
            )
        ),
        *(
            Bar(name, "requests a cycle", _redis.median(name, REQUESTS_A_CYCLE), most)
            for name, most in (
                ("one-key", 1.2),
                ("one-held-key", 1.2),
                ("one-key-processes", 3.0),
            )
        ),
        *(
            Minimum(
                name,
                "every cycle its own rising fence",
                _redis.least(name, RISING),
                1.0,
            )
            for name in ("one-key", "one-key-processes")
        ),
        Bar(
            "one-key",
            "longest wait, of the mean wait",
            _redis.median("one-key", LONGEST),
            5.0,
        ),
    ),
    "sql": (
        Bar(
            "hand-over",
            "PostgreSQL: p50, of the bare NOTIFY's",
            _postgresql.percentile("hand-over", HAND_OVER, 50, sql.NOTIFY),
            1.35,
        ),
        Bar(
            "hand-over",
            "MariaDB: p50",
            _mariadb.percentile("hand-over", HAND_OVER, 50),
            3.0,
            "ms",
        ),
        Bar(
            "hand-over",
            "SQLite: p50",
            _sqlite.percentile("hand-over", HAND_OVER, 50),
            3.0,
            "ms",
        ),
    ),
    "cassandra": (
        Bar(
            "hand-over",
            "woken over Redis: p50, of the floor's two transactions",
            _cassandra_hand_over,
            2.5,
        ),
    ),
}
"""The bars of each suite of ``suites.py``."""


def judged(data: Data) -> dict[str, list[Verdict]]:
    """Return the verdict of each bar, by suite."""
    return {
        suite: list(verdicts(bars, data.figures(suite))) for suite, bars in BARS.items()
    }
