"""What the locks on SQL databases are to reach: each bar in one line."""

from __future__ import annotations

from benchmarks.shared import many_tasks, turns
from benchmarks.shared.bars import Bar, Minimum, Of
from benchmarks.shared.handover import TOOK
from benchmarks.sql.adapters import (
    FLOOR,
    MARIADB_FLOOR,
    MARIADB_OURS,
    OURS,
    SQLITE_FLOOR,
    SQLITE_OURS,
)
from benchmarks.sql.scenarios import alone
from benchmarks.sql.scenarios.crowd import STATEMENTS

_ours = Of(OURS)
_mariadb = Of(MARIADB_OURS)
_sqlite = Of(SQLITE_OURS)

BARS: tuple[Bar, ...] = (
    Bar("Q1", "cycle, of the floor's", _ours.ratio("Q1", alone.CYCLE, FLOOR), 1.3),
    Bar(
        "Q1",
        "MariaDB: cycle, of the floor's",
        _mariadb.ratio("Q1", alone.CYCLE, MARIADB_FLOOR),
        1.3,
    ),
    Bar(
        "Q1",
        "SQLite: cycle, of the floor's",
        _sqlite.ratio("Q1", alone.CYCLE, SQLITE_FLOOR),
        1.3,
    ),
    Bar("Q3", "longest wait, of the mean wait", _ours.median("Q3", turns.LONGEST), 5.0),
    Minimum(
        "Q3", "every cycle its own rising fence", _ours.least("Q3", turns.RISING), 1.0
    ),
    Bar("Q4", "statements of all waiters", _ours.median("Q4", STATEMENTS), 1.0, "/s"),
    Bar(
        "Q4",
        "MariaDB: statements of all waiters",
        _mariadb.median("Q4", STATEMENTS),
        5.0,
        "/s",
    ),
    Minimum("Q4", "served of 1,000", _ours.least("Q4", many_tasks.SERVED), 1000.0),
    Bar("Q5", "hand-over p50", _ours.percentile("Q5", TOOK, 50), 1.5, "ms"),
)
