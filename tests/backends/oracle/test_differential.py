"""The store is the core's state machine, whatever the tables were before."""

from __future__ import annotations

import pytest

from tests.backends.oracle.differential import oracle
from tests.cas.differential import Comparison, compare
from tests.long import mostly_long
from tests.servers.oracle.client import OracleUser
from tests.servers.real_oracle import OracleDatabase

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@pytest.mark.parametrize("seed", mostly_long(range(1, 5), 2))
async def test_random_histories_agree_with_the_core(
    database: OracleUser | OracleDatabase, seed: int
) -> None:
    async with oracle(database.url) as tables:
        seen = await compare(tables, 1_000, seed)
    assert len(seen) > 12, seen


async def test_a_wrong_expectation_is_found(
    database: OracleUser | OracleDatabase,
) -> None:
    async with (
        oracle(database.url) as tables,
        Comparison(tables, 7, forgets=True) as comparison,
    ):
        with pytest.raises(AssertionError):
            await comparison.run(20_000)
