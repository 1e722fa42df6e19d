"""The Oracle store, by the conformance suite: the real driver, a double of the server.

At an Oracle Database instead: ``ORACLE_DSN``, see ``docs/stores/oracle.md``. The double
is one of 19c; ``test_oracle_12_2.py`` and ``test_oracle_23ai.py`` share the cases, too.
"""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.oracle import OracleHarness
from tests.loops import IN_TURN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn(
        "test_postgresql.py has the other loop, with the same sides", IN_TURN[::-1]
    ),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.usefixtures("oracle_tables"),
]


class TestOracle(ConformanceSuite):
    """``oracle://``."""

    harness = OracleHarness()
