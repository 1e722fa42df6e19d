"""Behind PgBouncer in transaction mode: a session lasts for one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import anyio
import psycopg
import pytest

from aiorwlock_remote import Unsupported, connect
from tests.backends.postgresql.notices import waited_for
from tests.renewals import renewed
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgresql import PostgresqlServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

SESSIONS = 3
LISTENERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN%'
"""


@pytest.fixture(scope="module")
def bouncer(postgresql_server: PostgresqlServer) -> Iterator[Pgbouncer]:
    running = Pgbouncer(postgresql_server.port, SESSIONS)
    yield running
    running.close()


@pytest.fixture
def url(bouncer: Pgbouncer, tables: str) -> str:
    return f"{bouncer.url(tables)}?statement_cache=no"


def listeners(tables: str) -> int:
    with psycopg.connect(tables) as connection:
        row = connection.execute(LISTENERS).fetchone()
        assert row is not None
        return int(row[0])


async def test_more_connections_than_sessions(url: str) -> None:
    """Statements of many go through a few sessions, in any order."""
    inside, most = [0] * 4, 0
    async with connect(f"{url}&listen=no&connections=12", connect_timeout=30) as locks:

        async def turns(task: int) -> None:
            nonlocal most
            for _ in range(5):
                async with locks.mutex("order", task % 4):
                    inside[task % 4] += 1
                    most = max(most, *inside)
                    await anyio.lowlevel.checkpoint()
                    inside[task % 4] -= 1

        async with anyio.create_task_group() as group:
            for task in range(24):
                group.start_soon(turns, task)
    assert most == 1


@pytest.mark.usefixtures("renewed_often")
async def test_the_keeper_renews(url: str) -> None:
    async with (
        connect(f"{url}&listen=no") as locks,
        locks.mutex("kept", 1) as held,
    ):
        await renewed(held)


async def test_the_listener_connects_to_the_server_itself(
    url: str, tables: str
) -> None:
    async with (
        connect(f"{url}&listen={tables}") as locks,
        connect(tables) as others,
        waited_for(others, locks, lambda: has(tables, 1), 30),
    ):
        pass


async def test_a_client_without_notifications_polls(
    url: str, tables: str, caplog: pytest.LogCaptureFixture
) -> None:
    """LISTEN there seems to work, in a session that serves others the next moment."""
    with caplog.at_level(logging.WARNING, "aiorwlock_remote.postgresql"):
        others_at = f"{tables}?listen=no"
        async with connect(url) as locks, connect(others_at) as others:
            async with waited_for(others, locks, lambda: warned(caplog), 30):
                pass
            assert listeners(tables) == 0
    (message,) = caplog.messages
    assert message.startswith("listen_needs_direct_connection ")


async def test_prepared_statements_are_not_there_the_next_time(
    bouncer: Pgbouncer, tables: str
) -> None:
    refused: list[Unsupported] = []
    through = f"{bouncer.url(tables)}?listen=no"
    async with connect(through) as locks:

        async def many(number: int) -> None:
            try:
                for _ in range(5):
                    async with locks.mutex("order", number):
                        pass
            except Unsupported as exc:
                refused.append(exc)

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(many, number)
    assert refused
    assert all("statement_cache=no" in str(exc) for exc in refused)


async def has(tables: str, number: int) -> bool:
    return listeners(tables) == number


async def warned(caplog: pytest.LogCaptureFixture) -> bool:
    return bool(caplog.records)
