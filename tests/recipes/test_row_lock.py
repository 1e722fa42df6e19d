"""Row locks by ``connect``: on each database, and on the double of Oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recipes.fix_rows import (
    mariadb_site,
    oracle_site,
    postgresql_site,
    sqlite_site,
)
from tests.recipes.row_basics import RowLockBasics
from tests.recipes.row_sites import RowSite
from tests.recipes.row_suite import RowLockSuite
from tests.servers.oracle.client import OracleUser

pytestmark = pytest.mark.anyio

LEASE = 30.0


@pytest.mark.no_uvloop("its thread is the same")
class TestSqlite(RowLockSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[RowSite]:
        with sqlite_site(tmp_path) as site:
            yield site


@pytest.mark.only_on("trio", "its thread is the same")
class TestLeasedSqlite(RowLockSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[RowSite]:
        with sqlite_site(tmp_path) as site:
            site.lease = LEASE
            yield site


@pytest.mark.only_on("trio", "the longer way to a driver; the other is below")
class TestPostgresql(RowLockSuite):
    @pytest.fixture
    def site(self, tables: str) -> Iterator[RowSite]:
        with postgresql_site(tables) as site:
            yield site


@pytest.mark.only_on("asyncio", "what differs is in the statements")
class TestLeasedPostgresql(RowLockBasics):
    @pytest.fixture
    def site(self, tables: str) -> Iterator[RowSite]:
        with postgresql_site(tables) as site:
            site.lease = LEASE
            yield site


@pytest.mark.only_on("asyncio", "trio's way to a driver is PostgreSQL's")
class TestMariadb(RowLockSuite):
    @pytest.fixture
    def site(self, mariadb_tables: str) -> Iterator[RowSite]:
        with mariadb_site(mariadb_tables) as site:
            yield site


@pytest.mark.only_on("asyncio", "what differs is in the statements")
class TestLeasedMariadb(RowLockBasics):
    @pytest.fixture
    def site(self, mariadb_tables: str) -> Iterator[RowSite]:
        with mariadb_site(mariadb_tables) as site:
            site.lease = LEASE
            yield site


@pytest.mark.only_on("asyncio", "trio's way to a driver is PostgreSQL's")
class TestMysql(RowLockSuite):
    @pytest.fixture
    def site(self, mysql_tables: str) -> Iterator[RowSite]:
        with mariadb_site(mysql_tables) as site:
            yield site


@pytest.mark.only_on("asyncio", "what differs is in the statements")
class TestLeasedMysql(RowLockBasics):
    @pytest.fixture
    def site(self, mysql_tables: str) -> Iterator[RowSite]:
        with mariadb_site(mysql_tables) as site:
            site.lease = LEASE
            yield site


@pytest.mark.only_on("asyncio", "trio's way to a driver is PostgreSQL's")
class TestOracle(RowLockSuite):
    @pytest.fixture
    def site(self, oracle_user: OracleUser) -> Iterator[RowSite]:
        with oracle_site(oracle_user.at("19c")) as site:
            yield site


@pytest.mark.only_on("asyncio", "what differs is in the statements")
class TestLeasedOracle(RowLockBasics):
    @pytest.fixture
    def site(self, oracle_user: OracleUser) -> Iterator[RowSite]:
        with oracle_site(oracle_user.at("19c")) as site:
            site.lease = LEASE
            yield site
