"""Row locks by ``connect``: on each database, and on the double of Oracle."""

from __future__ import annotations

import pytest

from tests.recipes.row_sites import site_of
from tests.recipes.row_suite import RowLockBasics, RowLockSuite

pytestmark = pytest.mark.anyio

LEASE = 30.0
driver_of_asyncio = pytest.mark.only_on(
    "asyncio", "trio's way to a driver is PostgreSQL's"
)
other_statements = pytest.mark.only_on("asyncio", "what differs is in the statements")


@pytest.mark.no_uvloop("its thread is the same")
class TestSqlite(RowLockSuite):
    site = site_of("sqlite")


@pytest.mark.only_on("trio", "its thread is the same")
class TestLeasedSqlite(RowLockSuite):
    site = site_of("sqlite", LEASE)


@pytest.mark.only_on("trio", "the longer way to a driver; the other is below")
class TestPostgresql(RowLockSuite):
    site = site_of("postgresql")


@other_statements
class TestLeasedPostgresql(RowLockBasics):
    site = site_of("postgresql", LEASE)


@driver_of_asyncio
class TestMariadb(RowLockSuite):
    site = site_of("mariadb")


@other_statements
class TestLeasedMariadb(RowLockBasics):
    site = site_of("mariadb", LEASE)


@driver_of_asyncio
class TestMysql(RowLockSuite):
    site = site_of("mysql")


@other_statements
class TestLeasedMysql(RowLockBasics):
    site = site_of("mysql", LEASE)


@driver_of_asyncio
class TestOracle(RowLockSuite):
    site = site_of("oracle")


@other_statements
class TestLeasedOracle(RowLockBasics):
    site = site_of("oracle", LEASE)
