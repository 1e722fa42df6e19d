"""The Oracle store by the conformance suite, at a server of 12.2: half of it."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.oracle import Oracle122Harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn("two suites have each case on both, with the same sides"),
    pytest.mark.share(0, 6, "test_oracle.py has all cases"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.usefixtures("oracle_tables"),
]


class TestOracle122(ConformanceSuite):
    """An old server."""

    harness = Oracle122Harness()
