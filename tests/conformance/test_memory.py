"""The memory store, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.memory import MemoryHarness

pytestmark = pytest.mark.no_uvloop("it has no connections")


class TestMemory(ConformanceSuite):
    """``memory://``."""

    harness = MemoryHarness()
