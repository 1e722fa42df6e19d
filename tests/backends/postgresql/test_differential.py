"""The store is the core's state machine, whatever the tables were before."""

from __future__ import annotations

import psycopg
import pytest

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.postgresql.driver import (
    PostgresqlDriver,
    PostgresqlExecutor,
)
from aiorwlock_remote.backends.postgresql.options import options_of
from aiorwlock_remote.cas import table_cas as swapping_tables
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.core.url import parse
from tests.cas.differential import Comparison, compare
from tests.long import mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


class PostgresqlTables:
    """See ``Database``."""

    def __init__(self, url: str) -> None:
        self._driver = PostgresqlDriver(options_of(parse(url)))
        self._foreign = psycopg.connect(url, autocommit=True)

    def executor(self, side: DriverLoop) -> PostgresqlExecutor:
        source = ConnectionPool(self._driver, 1)
        return PostgresqlExecutor(side, source, self._driver)

    async def delete(self, table: str, kind: str, number: int) -> None:
        where = "resource_type = %s AND resource_id = %s"
        self._foreign.execute(f"DELETE FROM {table} WHERE {where}", (kind, number))  # noqa: S608

    async def sit(self, kind: str, number: int, ticket: str) -> None:
        self._foreign.execute(
            "INSERT INTO mutex_locks VALUES (%s, %s, %s,"
            " '2001-09-09 01:46:40.000500+00')",
            (kind, number, ticket),
        )

    def close(self) -> None:
        self._foreign.close()


@pytest.mark.parametrize("seed", mostly_long(range(1, 5), 2))
async def test_random_histories_agree_with_the_core(tables: str, seed: int) -> None:
    compared = PostgresqlTables(tables)
    seen = await compare(compared, 1_000, seed)
    compared.close()
    assert len(seen) > 12, seen


async def test_the_control_that_expects_no_refusal_fails(
    tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping_tables, "UNCONTENDED_AFTER", -1)
    compared = PostgresqlTables(tables)
    seen = await compare(compared, 1_000, seed=5)
    compared.close()
    assert len(seen) > 12, seen


async def test_a_wrong_expectation_is_found(tables: str) -> None:
    compared = PostgresqlTables(tables)
    async with Comparison(compared, 7, forgets=True) as comparison:
        with pytest.raises(AssertionError):
            await comparison.run(20_000)
    compared.close()
