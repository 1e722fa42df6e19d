"""The PostgreSQL store, by the conformance suite."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest

from aiorwlock_remote.backends.postgresql.statements import statements_of
from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.postgresql import PostgresqlHarness
from tests.servers.postgresql import PostgresqlServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn("test_oracle.py has the other loop, with the same sides"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


@pytest.fixture(scope="module", autouse=True)
def _tables(postgresql_server: PostgresqlServer) -> Iterator[None]:
    with postgresql_server.database(f"t_{secrets.token_hex(6)}") as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements_of():
                connection.execute(statement)
        PostgresqlHarness.url = url
        yield


class TestPostgresql(ConformanceSuite):
    """``postgresql://``."""

    harness = PostgresqlHarness()
