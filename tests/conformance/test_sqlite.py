"""The SQLite store, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.sqlite import SqliteHarness
from tests.loops import IN_TURN

pytestmark = [
    pytest.mark.sleepers_in_turn(
        "test_postgresql.py has the other loop", IN_TURN[::-1]
    ),
    pytest.mark.no_uvloop("its threads are those of asyncio"),
]


class TestSqlite(ConformanceSuite):
    """``sqlite:///``."""

    harness = SqliteHarness()
