"""The store in files, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.files import FileHarness

pytestmark = [
    pytest.mark.in_turn("test_sqlite.py has both, with the same threads"),
    pytest.mark.no_uvloop("its threads are those of asyncio"),
]


class TestFiles(ConformanceSuite):
    """``file:///``."""

    harness = FileHarness()
