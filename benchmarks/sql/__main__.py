"""``python -m benchmarks.sql``: the suite on SQL databases."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.harness.suite import Suite, run
from benchmarks.sql.adapters import (
    MARIADB,
    MARIADB_WOKEN,
    MYSQL,
    NOTIFY,
    POSTGRESQL,
    SQLITE,
)
from benchmarks.sql.bars import BARS
from benchmarks.sql.scenarios import SCENARIOS
from benchmarks.sql.server import Server, server

PACKAGES = ("asyncmy", "asyncpg", "psycopg", "sqlalchemy", "sqlalchemy-dlock")


def suite() -> Suite[Server]:
    """Return the suite on SQL databases."""
    return Suite(
        family="benchmarks.sql",
        peers=(*POSTGRESQL, NOTIFY, *MARIADB, MARIADB_WOKEN, *MYSQL, *SQLITE),
        scenarios=SCENARIOS,
        bars=BARS,
        server=server,
        versions=_versions,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    return run(suite(), argv)


def _versions(running: Server) -> dict[str, object]:
    return running.about() | {name: version(name) for name in PACKAGES}


if __name__ == "__main__":
    sys.exit(main())
