"""The SQLite store, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.sqlite import SqliteHarness

pytestmark = pytest.mark.no_uvloop("its threads are those of asyncio")


class TestSqlite(ConformanceSuite):
    """``sqlite:///``."""

    harness = SqliteHarness()
