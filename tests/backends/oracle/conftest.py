"""Users of the double with our tables in their schema."""

from __future__ import annotations

import pytest

from tests.backends.oracle.programs import make_tables
from tests.servers.oracle.client import OracleUser
from tests.servers.real_oracle import OracleDatabase, real_oracle


@pytest.fixture
def database(request: pytest.FixtureRequest) -> OracleUser | OracleDatabase:
    """``ORACLE_DSN``, if it is set; else as ``user``."""
    real = real_oracle()
    if real is not None:
        return real
    user: OracleUser = request.getfixturevalue("user")
    return user


@pytest.fixture
def user(oracle_user: OracleUser) -> OracleUser:
    """Of the test's own, at a server of 19c, and both tables are there."""
    make_tables(oracle_user)
    return oracle_user.at("19c")
