"""A grant that ends with the caller's own transaction, and not before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncmy
import pytest

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.backends.mariadb.options import options_of
from aiorwlock_remote.core.url import parse
from tests.backends.mariadb.pools import pool_of
from tests.backends.mariadb.products import MARIADB_PRODUCT
from tests.cas.in_transaction_suite import (
    BOOK,
    BOOKED,
    Connection,
    JoinSuite,
    User,
    Value,
)
from tests.servers.mariadb import run

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

RENEWAL = (
    "UPDATE doormans SET updated_at = UTC_TIMESTAMP(6) WHERE resource_id = 1"
    " AND EXISTS (SELECT 1 FROM mutex_locks WHERE resource_id = 1)"
)
LOOK = (
    "SELECT 1 FROM doormans JOIN mutex_locks USING (resource_type, resource_id)"
    " WHERE resource_id = 1 FOR UPDATE"
)


class Asyncmy(User):
    """A program that uses asyncmy."""

    under_way = (RENEWAL, LOOK)

    def __init__(self, url: str) -> None:
        self.url = url
        scheme, _, rest = url.partition(":")
        self.engine = f"{scheme}+asyncmy:{rest}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Connection]:
        at = options_of(parse(self.url))
        connection = await asyncmy.connect(
            host=at.host,
            port=at.port,
            user=at.username,
            db=at.database,
            autocommit=True,
        )
        try:
            yield connection
        finally:
            connection.close()

    async def begin(self, connection: Connection, *, frozen: bool = False) -> None:
        del frozen  # it is, unless another level was chosen
        await connection.begin()

    async def ask(self, connection: Connection, statement: str) -> Value:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
            row = await cursor.fetchone()
            return None if row is None else row[0]


@pytest.fixture
def user(db_tables: str) -> Asyncmy:
    run(db_tables, "CREATE TABLE booked (n integer)")
    return Asyncmy(db_tables)


class TestMariadb(JoinSuite):
    async def test_a_connection_without_autocommit(self, user: Asyncmy) -> None:
        """Whatever is asked there begins a transaction."""
        async with connect(user.url) as locks, user.opened() as connection:
            await connection.autocommit(False)
            async with locks.mutex("order", 1).in_transaction(connection):
                await user.ask(connection, BOOK)
            await user.ask(connection, "COMMIT")
            assert await user.free() == 1

    @pytest.mark.parametrize("product", [MARIADB_PRODUCT], ids=str, indirect=True)
    async def test_a_server_that_refuses_old_snapshots(self, user: Asyncmy) -> None:
        """As it is from MariaDB 11.6.2 on: an error instead of no row."""
        async with connect(user.url) as locks, user.opened() as connection:
            await user.ask(connection, "SET SESSION innodb_snapshot_isolation = ON")
            with pytest.raises(ConfigurationError, match="is not visible"):
                async with user.transaction(connection):
                    await user.ask(connection, BOOKED)
                    async with locks.mutex("order", 1).in_transaction(connection):
                        pass
            await user.free()

    async def test_a_connection_to_another_database(self, user: Asyncmy) -> None:
        """Of the same server: the tables of the locks are found all the same."""
        async with connect(user.url) as locks, user.opened() as connection:
            await user.ask(connection, "USE information_schema")
            async with (
                user.transaction(connection),
                locks.mutex("order", 1).in_transaction(connection) as held,
            ):
                held.check()
            await user.free()

    async def test_locks_over_a_pool_of_the_users(self, user: Asyncmy) -> None:
        """Its sessions keep the server's own level, REPEATABLE READ."""
        async with (
            pool_of(user.url) as backend,
            connect(backend) as locks,
            user.opened() as connection,
        ):
            async with (
                user.transaction(connection),
                locks.mutex("order", 1).in_transaction(connection) as held,
            ):
                await held.extend()
            assert await user.free() == 0
