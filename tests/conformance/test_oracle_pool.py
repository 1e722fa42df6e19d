"""The conformance suite through a pool of python-oracledb; on asyncio alone."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.oracle import OraclePoolHarness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("asyncio", "the driver's pool knows nothing of trio"),
    pytest.mark.in_turn("test_oracle.py has the other half"),
    pytest.mark.share(2, 3, "test_oracle.py has all cases"),
    pytest.mark.usefixtures("oracle_tables"),
]


class TestOraclePool(ConformanceSuite):
    """``OracleBackend``, whose keeper needs the loop."""

    harness = OraclePoolHarness()
