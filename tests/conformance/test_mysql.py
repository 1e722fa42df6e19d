"""The MySQL store, by the conformance suite."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.mysql import MysqlHarness
from tests.loops import ALL_IN_TURN
from tests.servers.fix_mariadb import make_tables
from tests.servers.mariadb import MariadbServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn(
        "two suites have each case on both, with the same sides", ALL_IN_TURN
    ),
    pytest.mark.share(1, 4, "test_mariadb.py has all, with the same statements"),
]


@pytest.fixture(scope="module", autouse=True)
def _tables(mysql_server: MariadbServer) -> Iterator[None]:
    with mysql_server.database(f"t_{secrets.token_hex(6)}") as url:
        make_tables(url)
        MysqlHarness.url = url
        yield


class TestMysql(ConformanceSuite):
    """``mysql://``."""

    harness = MysqlHarness()
