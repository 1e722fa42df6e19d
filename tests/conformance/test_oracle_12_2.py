"""The Oracle store by the conformance suite, at a server of 12.2; on asyncio alone."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.oracle import Oracle122Harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("asyncio", "test_oracle.py has trio"),
    pytest.mark.usefixtures("oracle_tables"),
]


class TestOracle122(ConformanceSuite):
    """An old server."""

    harness = Oracle122Harness()
