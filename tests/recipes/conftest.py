"""Databases with a user's table, for row locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recipes.fix_rows import (
    LocksSite,
    mariadb_site,
    oracle_site,
    postgresql_site,
    sqlite_site,
)
from tests.servers.oracle.client import OracleUser


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[LocksSite]:
    with sqlite_site(tmp_path) as site:
        yield site


@pytest.fixture
def postgresql(tables: str) -> Iterator[LocksSite]:
    with postgresql_site(tables) as site:
        yield site


@pytest.fixture
def mariadb(mariadb_tables: str) -> Iterator[LocksSite]:
    with mariadb_site(mariadb_tables) as site:
        yield site


@pytest.fixture
def mysql(mysql_tables: str) -> Iterator[LocksSite]:
    with mariadb_site(mysql_tables) as site:
        yield site


@pytest.fixture
def oracle(oracle_user: OracleUser) -> Iterator[LocksSite]:
    """On the double of Oracle."""
    with oracle_site(oracle_user.at("19c")) as site:
        yield site
