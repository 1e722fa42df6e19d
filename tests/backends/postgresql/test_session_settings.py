"""What a database, a role or a server sets, and our statements would feel."""

from __future__ import annotations

from functools import partial

import anyio
import psycopg
import pytest

from aiorwlock_remote import Locks, Unsupported, connect
from aiorwlock_remote.core.row import RowTable
from aiorwlock_remote.core.row_dialects import POSTGRESQL
from aiorwlock_remote.recipes.row_lock.target import RowSql
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.cas.tables import opened

pytestmark = pytest.mark.asyncio

SETTINGS = (
    "quote_all_identifiers = on",
    "standard_conforming_strings = off",
    "transform_null_equals = on",
    "bytea_output = escape",
    "client_encoding = latin1",
    "client_min_messages = debug5",
    "DateStyle = 'Postgres, DMY'",
    "IntervalStyle = sql_standard",
    "TimeZone = 'Australia/Sydney'",
    "extra_float_digits = -15",
    "plan_cache_mode = force_generic_plan",
    "default_transaction_isolation = serializable",
    "default_transaction_deferrable = on",
    "session_replication_role = replica",
    "row_security = off",
    "statement_timeout = 1",
    "idle_in_transaction_session_timeout = 1",
)
IDLE = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN%'
AND state_change < clock_timestamp() - interval '2s'
"""


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def sets(url: str, *settings: str) -> None:
    """In each session that begins from now on."""
    name = url.rpartition("/")[2]
    run(url, *(f"ALTER DATABASE {name} SET {setting}" for setting in settings))


async def test_whatever_is_set(tables: str) -> None:
    texts = RowSql(RowTable("invoices"), 1, POSTGRESQL)
    run(tables, "CREATE TABLE invoices (id int)", "INSERT INTO invoices VALUES (1)")
    run(tables, texts.add_columns, texts.add_grants_column)
    sets(tables, *SETTINGS)
    async with connect(tables) as locks, connect(tables) as others:
        one, other = locks.mutex("order", 1), locks.mutex("a\\'b", 2)
        async with one as held, other:
            assert len([found async for found in others.list()]) == 2
            await held.extend()
        async with locks.rwlock("catalog", 7).reader:
            assert await others.rwlock("catalog", 7).writer.try_acquire() is None
        for lease in (None, 30):
            invoice = locks.row_lock("invoices", 1, lease=lease)
            async with invoice.write("naïve \\n 🔒"):
                assert (await invoice.look()).reason == "naïve \\n 🔒"
    async with opened(tables) as store:
        await store.forget(0)


async def test_a_listener_outlives_the_idle_timeout(tables: str) -> None:
    """No message is sent for longer than a session may be idle there."""
    sets(tables, "idle_session_timeout = 500")
    async with (
        connect(tables) as locks,
        connect(tables) as others,
        others.mutex("order", 1),
        anyio.create_task_group() as group,
    ):
        group.start_soon(take, locks)
        await wait_until(partial(idles, tables), 20)
        group.cancel_scope.cancel()


async def take(locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass


async def idles(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(IDLE).fetchone() == (1,)


@pytest.mark.parametrize("path", ["''", "nowhere", "pg_temp"])
async def test_a_path_on_which_the_tables_are_not(tables: str, path: str) -> None:
    sets(tables, f"search_path = {path}")
    with pytest.raises(Unsupported, match=r"search_path.*\?schema="):
        await connect(tables)
    async with connect(f"{tables}?schema=public") as locks, locks.mutex("order", 1):
        assert len([found async for found in locks.list()]) == 1
