"""What the locks on SQL databases are to reach: one bar for each goal."""

from __future__ import annotations

from benchmarks.harness.measures import HAND_OVER, SERVED, fair_bars
from benchmarks.harness.report import Bar, Minimum, Of
from benchmarks.sql.adapters import (
    FLOOR,
    MARIADB_FLOOR,
    MARIADB_OURS,
    MARIADB_WOKEN,
    MYSQL_FLOOR,
    MYSQL_OURS,
    NOTIFY,
    OURS,
    SQLITE_FLOOR,
    SQLITE_OURS,
)
from benchmarks.sql.scenarios import CYCLE, STATEMENTS

_ours = Of(OURS)
_mariadb = Of(MARIADB_OURS)
_mysql = Of(MYSQL_OURS)
_sqlite = Of(SQLITE_OURS)

BARS: tuple[Bar, ...] = (
    Bar("alone", "cycle, of the floor's", _ours.ratio("alone", CYCLE, FLOOR), 1.3),
    Bar(
        "alone",
        "MariaDB: cycle, of the floor's",
        _mariadb.ratio("alone", CYCLE, MARIADB_FLOOR),
        1.3,
    ),
    Bar(
        "alone",
        "MySQL: cycle, of the floor's",
        _mysql.ratio("alone", CYCLE, MYSQL_FLOOR),
        1.3,
    ),
    Bar(
        "alone",
        "SQLite: cycle, of the floor's",
        _sqlite.ratio("alone", CYCLE, SQLITE_FLOOR),
        1.3,
    ),
    *fair_bars(_ours, "one-key-processes"),
    Bar(
        "waiters",
        "statements of all waiters",
        _ours.median("waiters", STATEMENTS),
        1.0,
        "/s",
    ),
    Bar(
        "waiters",
        "MariaDB: statements of all waiters",
        _mariadb.median("waiters", STATEMENTS),
        5.0,
        "/s",
    ),
    Bar(
        "waiters",
        "MySQL: statements of all waiters",
        _mysql.median("waiters", STATEMENTS),
        5.0,
        "/s",
    ),
    Minimum("waiters", "served of 1,000", _ours.least("waiters", SERVED), 1000.0),
    Bar(
        "hand-over",
        "p50, of the bare NOTIFY's",
        _ours.percentile("hand-over", HAND_OVER, 50, NOTIFY),
        1.35,
    ),
    Bar(
        "hand-over",
        "MariaDB, woken over Redis: p50",
        Of(MARIADB_WOKEN).percentile("hand-over", HAND_OVER, 50),
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
)
