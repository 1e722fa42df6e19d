"""Row locks by an engine of SQLAlchemy, by the suite of all row locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.fix_alchemy_rows import AlchemySite
from tests.recipes.fix_rows import mariadb_site, sqlite_site
from tests.recipes.row_sites import RowSite, site_of
from tests.recipes.row_suite import RowLockBasics, RowLockSuite

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.only_on("asyncio", "its engines know no other loop")


@pytest.fixture
def mariadb(mariadb_empty: str) -> Iterator[RowSite]:
    with mariadb_site(mariadb_empty) as site:
        url = mariadb_empty.replace("mariadb:", "mysql+asyncmy:")
        yield AlchemySite(site.plain, url)


@pytest.fixture
def mysql_by_asyncmy(mysql_empty: str) -> Iterator[RowSite]:
    with mariadb_site(mysql_empty) as site:
        yield AlchemySite(site.plain, mysql_empty.replace("mysql:", "mysql+asyncmy:"))


@pytest.fixture
def mysql_by_aiomysql(mysql_by_asyncmy: AlchemySite) -> RowSite:
    url = mysql_by_asyncmy.url.replace("asyncmy", "aiomysql")
    return AlchemySite(mysql_by_asyncmy.plain, url)


@on_asyncio
class TestSqlite(RowLockSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[RowSite]:
        with sqlite_site(tmp_path) as site:
            # The other program blocks this loop, which must not be in its way: a read
            # of aiosqlite ends only when the loop goes on.
            site.plain.rows("PRAGMA journal_mode=WAL")
            path = site.url.partition("?rows=")[2]
            yield AlchemySite(site.plain, f"sqlite+aiosqlite:///{path}?timeout=20")


@on_asyncio
class TestPostgresql(RowLockSuite):
    site = site_of("alchemy_shop")


@on_asyncio
class TestMariadb(RowLockSuite):
    site = site_of("mariadb")


@on_asyncio
class TestLeasedMariadb(RowLockBasics):
    site = site_of("mariadb", 30.0)


@on_asyncio
class TestMysql(RowLockSuite):
    site = site_of("mysql_by_asyncmy")


@on_asyncio
class TestLeasedMysqlByAiomysql(RowLockBasics):
    site = site_of("mysql_by_aiomysql", 30.0)
