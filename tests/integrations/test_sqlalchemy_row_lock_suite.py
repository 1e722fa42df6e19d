"""Row locks by an engine of SQLAlchemy, by the suite of all row locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.fix_alchemy_rows import AlchemySite
from tests.recipes.fix_rows import mariadb_site, postgresql_site, sqlite_site
from tests.recipes.row_basics import RowLockBasics
from tests.recipes.row_sites import RowSite
from tests.recipes.row_suite import RowLockSuite

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.only_on("asyncio", "its engines know no other loop")


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
    @pytest.fixture
    def site(self, database: str) -> Iterator[RowSite]:
        with postgresql_site(database) as site:
            url = database.replace("postgresql:", "postgresql+asyncpg:")
            yield AlchemySite(site.plain, url)


@on_asyncio
class TestMariadb(RowLockSuite):
    @pytest.fixture
    def site(self, mariadb_empty: str) -> Iterator[RowSite]:
        with mariadb_site(mariadb_empty) as site:
            url = mariadb_empty.replace("mariadb:", "mysql+asyncmy:")
            yield AlchemySite(site.plain, url)


@on_asyncio
class TestLeasedMariadb(RowLockBasics):
    @pytest.fixture
    def site(self, mariadb_empty: str) -> Iterator[RowSite]:
        with mariadb_site(mariadb_empty) as site:
            url = mariadb_empty.replace("mariadb:", "mysql+asyncmy:")
            made = AlchemySite(site.plain, url)
            made.lease = 30.0
            yield made


@on_asyncio
class TestMysql(RowLockSuite):
    @pytest.fixture
    def site(self, mysql_empty: str) -> Iterator[RowSite]:
        with mariadb_site(mysql_empty) as site:
            url = mysql_empty.replace("mysql:", "mysql+asyncmy:")
            yield AlchemySite(site.plain, url)


@on_asyncio
class TestLeasedMysqlByAiomysql(RowLockBasics):
    @pytest.fixture
    def site(self, mysql_empty: str) -> Iterator[RowSite]:
        with mariadb_site(mysql_empty) as site:
            url = mysql_empty.replace("mysql:", "mysql+aiomysql:")
            made = AlchemySite(site.plain, url)
            made.lease = 30.0
            yield made
