"""The SQLite store, by the conformance suite."""

from __future__ import annotations

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores import SqliteHarness


class TestSqlite(ConformanceSuite):
    """``sqlite:///``."""

    harness = SqliteHarness()
