"""The PostgreSQL store behind PgBouncer in transaction mode, by the suite."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.postgresql import PooledPostgresqlHarness
from tests.servers.fix_postgresql import make_tables
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgresql import PostgresqlServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what differs is between driver and server"),
    pytest.mark.in_turn("test_postgresql.py has all cases"),
    pytest.mark.share(0, 2, "test_postgresql.py has all cases"),
]


@pytest.fixture(scope="module", autouse=True)
def _tables(postgresql_server: PostgresqlServer) -> Iterator[None]:
    bouncer = Pgbouncer(postgresql_server.port, most=8)
    with postgresql_server.database(f"t_{secrets.token_hex(6)}") as url:
        make_tables(url)
        through = f"{bouncer.url(url)}?statement_cache=no&listen={url}"
        PooledPostgresqlHarness.through = through
        PooledPostgresqlHarness.url = url
        yield
        bouncer.close()


class TestPooledPostgresql(ConformanceSuite):
    """``postgresql://…?statement_cache=no&listen=…``."""

    harness = PooledPostgresqlHarness()
