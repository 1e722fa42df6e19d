"""What the tests of other libraries share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integrations.fix_alchemy_rows import AlchemySite
from tests.recipes.django_settings import configure
from tests.recipes.fix_rows import mariadb_site, postgresql_site, sqlite_site
from tests.servers.plain_rows import PlainRows

if TYPE_CHECKING:
    from tests.integrations.fix_django_rows import DjangoSite

configure()


def django_site(plain: PlainRows, url: str) -> DjangoSite:
    """Its models need the configuration."""
    from tests.integrations.fix_django_rows import DjangoSite  # noqa: PLC0415

    return DjangoSite(plain, url)


@pytest.fixture
def alchemy_shop(database: str) -> Iterator[AlchemySite]:
    """Invoices on PostgreSQL, by an engine."""
    with postgresql_site(database) as site:
        url = database.replace("postgresql:", "postgresql+asyncpg:")
        yield AlchemySite(site.plain, url)


@pytest.fixture
def django_shop(tmp_path: Path) -> Iterator[DjangoSite]:
    """Invoices in a file, by their model."""
    with sqlite_site(tmp_path) as site:
        path = site.url.partition("?rows=")[2]
        yield django_site(site.plain, f"sqlite:///{path}")


@pytest.fixture
def django_postgresql(database: str) -> Iterator[DjangoSite]:
    """Invoices on PostgreSQL, by their model."""
    with postgresql_site(database) as site:
        yield django_site(site.plain, database)


@pytest.fixture
def django_mariadb(mariadb_empty: str) -> Iterator[DjangoSite]:
    """Invoices on MariaDB, by their model."""
    with mariadb_site(mariadb_empty) as site:
        yield django_site(site.plain, mariadb_empty)


@pytest.fixture
def django_mysql(mysql_empty: str) -> Iterator[DjangoSite]:
    """Invoices on MySQL, by their model."""
    with mariadb_site(mysql_empty) as site:
        yield django_site(site.plain, mysql_empty)
