"""The Oracle store by the conformance suite, at a server of 23ai: half of it."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.oracle import Oracle23Harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn("two suites have each case on both, with the same sides"),
    pytest.mark.share(1, 3, "test_oracle.py has all cases"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.usefixtures("oracle_tables"),
]


class TestOracle23(ConformanceSuite):
    """A new server, which logs in otherwise."""

    harness = Oracle23Harness()
