"""A grant that ends with the caller's own transaction, and not before."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import psycopg
import pytest

from aiorwlock_remote import ConfigurationError, LockTimeout, Unsupported, connect
from tests.cas.in_transaction_suite import Connection, JoinSuite, User, Value

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

RENEWAL = (
    "UPDATE doormans SET version = version WHERE resource_id = 1"
    " AND EXISTS (SELECT FROM mutex_locks WHERE resource_id = 1) RETURNING 1"
)
LOOK = "SELECT 1 FROM mutex_locks WHERE resource_id = 1 FOR KEY SHARE"

CHILD = """
import asyncio, sys, asyncpg
from aiorwlock_remote import connect

async def main(url):
    async with connect(url) as locks:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            async with locks.mutex("order", 1).in_transaction(connection):
                await connection.execute("INSERT INTO booked VALUES (1)")
                print("in", flush=True)
                await asyncio.sleep(1000)

asyncio.run(main(sys.argv[1]))
"""


class Asyncpg(User):
    """A program that uses asyncpg."""

    under_way = (RENEWAL, LOOK)

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = url.replace("postgresql:", "postgresql+asyncpg:")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Connection]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def begin(self, connection: Connection, *, frozen: bool = False) -> None:
        level = "ISOLATION LEVEL REPEATABLE READ" if frozen else ""
        await connection.execute(f"BEGIN {level}")

    async def ask(self, connection: Connection, statement: str) -> Value:
        return await connection.fetchval(statement)


@pytest.fixture
def user(tables: str) -> Asyncpg:
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE TABLE booked (n integer)")
    return Asyncpg(tables)


class TestPostgresql(JoinSuite):
    async def test_transactions_of_asyncpg(self, user: Asyncpg) -> None:
        async with (
            connect(user.url) as locks,
            user.opened() as connection,
            connection.transaction(),
            locks.mutex("order", 1).in_transaction(connection) as held,
        ):
            held.check()
        await user.free()

    async def test_a_client_that_is_killed(self, user: Asyncpg) -> None:
        """Its transaction is rolled back at once, the lock free when the lease ends."""
        child = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
            [sys.executable, "-c", CHILD, user.url], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "in\n"
            async with connect(user.url) as locks:
                with pytest.raises(LockTimeout):
                    await locks.mutex("order", 1).acquire(timeout=0.2)
            child.send_signal(signal.SIGKILL)
            assert await user.free(60) == 0
        finally:
            child.kill()
            child.communicate()

    async def test_a_transaction_that_has_failed(self, user: Asyncpg) -> None:
        """No fault of the server's; the lock is given back."""
        async with user.opened() as connection, connect(user.url) as locks:
            transaction = connection.transaction()
            await transaction.start()
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.execute("SELECT 1 / 0")
            with pytest.raises(ConfigurationError, match="aborted"):
                async with locks.mutex("order", 1).in_transaction(connection):
                    pass
            await transaction.rollback()
            await user.free()

    async def test_another_database(self, user: Asyncpg) -> None:
        elsewhere = Asyncpg(user.url.rpartition("/")[0] + "/postgres")
        async with connect(user.url) as locks, elsewhere.opened() as connection:
            with pytest.raises((ConfigurationError, Unsupported)):
                async with (
                    connection.transaction(),
                    locks.mutex("order", 1).in_transaction(connection),
                ):
                    pass
            await user.free()
