"""What the tests of the servers share."""

from __future__ import annotations

import pytest

from tests.servers.oracle.client import OracleUser


@pytest.fixture(params=["12.1", "12.2", "19c", "23ai"])
def user(request: pytest.FixtureRequest, oracle_user: OracleUser) -> OracleUser:
    """A user of the double of Oracle, at each release it speaks for."""
    profile: str = request.param
    return oracle_user.at(profile)
