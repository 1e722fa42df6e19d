"""The server's queue of notifications is full: locks go on without it.

It has 8 GB, and less cannot be set before PostgreSQL 17; so ``pg_notify`` of
these tests fails as the server's own does, by the same code. See ``errors.py``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import anyio
import psycopg
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.core.row import RowTable
from aiorwlock_remote.core.row_dialects import POSTGRESQL
from aiorwlock_remote.recipes.row_lock.target import RowSql
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import queued
from tests.recipes.django_settings import configure
from tests.recipes.occupied_django import close, database

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]

EVENT = "notify_queue_full"
FULL = """
CREATE OR REPLACE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM full_queue) THEN
    RAISE EXCEPTION 'too many notifications in the NOTIFY queue'
      USING ERRCODE = '54000';
  END IF;
  PERFORM pg_catalog.pg_notify($1, $2);
END
$$
"""


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def full(tables: str) -> str:
    """Ours comes before the server's own on the path."""
    name = tables.rpartition("/")[2]
    path = f"ALTER DATABASE {name} SET search_path = public, pg_catalog"
    run(tables, path, "CREATE TABLE full_queue (n integer)", FULL)
    run(tables, "INSERT INTO full_queue VALUES (1)")
    return tables


async def take(locks: Locks, entered: anyio.Event) -> None:
    async with locks.mutex("order", 1):
        entered.set()


async def turn(locks: Locks, others: Locks) -> None:
    """Somebody queues up behind the holder, and comes in when that has left."""
    entered = anyio.Event()
    async with anyio.create_task_group() as tasks:
        async with locks.mutex("order", 1):
            tasks.start_soon(take, others, entered)
            await wait_until(partial(queued, locks), 30)
        await entered.wait()


async def test_a_release_is_carried_out_without_its_wake_up(
    full: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiters poll meanwhile; each ``Locks`` writes one line an outage.

    Those who queue up notify as well, once a holder listens.
    """
    elsewhere = full.replace("127.0.0.1", "localhost")
    async with connect(full) as locks, connect(elsewhere) as others:
        for outages in (1, 2):
            for _ in range(3 - outages):
                await turn(locks, others)
            assert caplog.text.count(f"{EVENT} server=127.0.0.1") == outages
            run(full, "TRUNCATE full_queue")
            await turn(locks, others)
            run(full, "INSERT INTO full_queue VALUES (1)")


@pytest.mark.parametrize("by", ["locks", "django"])
async def test_a_row_is_freed_without_its_wake_up(full: str, by: str) -> None:
    table = RowTable("invoices")
    texts = RowSql(table, 1, POSTGRESQL)
    run(full, "CREATE TABLE invoices (id int)", "INSERT INTO invoices VALUES (1)")
    run(full, texts.add_columns)
    entered = anyio.Event()
    async with connect(full) as locks, connect(full) as others, AsyncExitStack() as end:
        first = locks.row_lock("invoices", 1)
        if by == "django":
            configure()
            from tests.integrations.fix_django_rows import lock_of  # noqa: PLC0415 - its models need the configuration

            alias = database(full)
            end.push_async_callback(close, alias)
            first = lock_of(alias, None, 1)

        async def follow() -> None:
            async with others.row_lock("invoices", 1).write("follow"):
                entered.set()

        async with anyio.create_task_group() as tasks:
            async with first.write("first"):
                tasks.start_soon(follow)
                while not waited_for(full):  # noqa: ASYNC110 - in the database
                    await anyio.sleep(0.01)
            await entered.wait()


def waited_for(url: str) -> bool:
    """Whether somebody listens for the row."""
    with psycopg.connect(url, autocommit=True) as connection:
        asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        return connection.execute(asked).fetchone() != (0,)
