"""The store is the core's state machine, whatever the tables were before."""

from __future__ import annotations

import pymysql
import pytest

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.mariadb.options import options_of
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.core.url import parse
from tests.backends.mariadb.products import product_of
from tests.cas.differential import Comparison, compare
from tests.long import mostly_long
from tests.servers.mariadb import connected

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


class MariadbTables:
    """See ``Database``."""

    def __init__(self, url: str) -> None:
        self._driver = product_of(url).driver(options_of(parse(url)))
        self._foreign: pymysql.Connection = connected(url)

    def executor(self, side: DriverLoop) -> MariadbExecutor:
        source = ConnectionPool(self._driver, 1)
        return MariadbExecutor(side, source, self._driver)

    async def delete(self, table: str, kind: str, number: int) -> None:
        where = "resource_type = %s AND resource_id = %s"
        with self._foreign.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table} WHERE {where}", (kind, number))  # noqa: S608

    async def sit(self, kind: str, number: int, ticket: str) -> None:
        with self._foreign.cursor() as cursor:
            cursor.execute(
                "INSERT INTO mutex_locks VALUES (%s, %s, %s,"
                " '2001-09-09 01:46:40.000500')",
                (kind, number, ticket),
            )


@pytest.mark.parametrize("seed", mostly_long(range(1, 5), 4))
async def test_random_histories_agree_with_the_core(db_tables: str, seed: int) -> None:
    seen = await compare(MariadbTables(db_tables), 2_500, seed)
    assert len(seen) > 12, seen


async def test_a_wrong_expectation_is_found(db_tables: str) -> None:
    tables = MariadbTables(db_tables)
    async with Comparison(tables, 7, forgets=True) as comparison:
        with pytest.raises(AssertionError):
            await comparison.run(20_000)
