"""A role or a pool whose transactions are of a higher level than READ COMMITTED."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import psycopg
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from aiorwlock_remote.backends.postgresql.store import PostgresqlStore
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.testing.conformance.actors import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ORDER = resource("order", 1)
TAKE = "INSERT INTO mutex_locks VALUES ('order', 1, 'theirs', now())"
OLD = "UPDATE doormans SET updated_at = now() - interval '1 hour'"
WAITS = """
SELECT count(*) FROM pg_locks WHERE NOT granted
AND relation IN ('mutex_locks'::regclass, 'doormans'::regclass)
"""


@asynccontextmanager
async def opened(url: str, kind: str) -> AsyncIterator[Locks]:
    """Over connections of our own, or those of a pool."""
    if kind == "own":
        async with connect(url) as locks:
            yield locks
        return
    async with (
        asyncpg.create_pool(url, min_size=0, max_size=4) as pool,
        connect(PostgresqlBackend(pool)) as locks,
    ):
        yield locks


@pytest.mark.parametrize("kind", ["own", "pool"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_row_that_is_newer_than_a_snapshot(
    tables: str, level: str, kind: str
) -> None:
    """What ``acquire`` asks after ``in_transaction``, and what cleans up.

    The snapshot of a prepared statement is older than its wait for the table.
    """
    with psycopg.connect(tables, autocommit=True) as other:
        name = tables.rpartition("/")[2]
        setting = "default_transaction_isolation"
        other.execute(f"ALTER DATABASE {name} SET {setting} = '{level}'")
        async with opened(tables, kind) as locks:
            async with locks.mutex("order", 2):
                pass  # its doorman is what is cleaned up
            store = locks._session.client.store
            assert isinstance(store, PostgresqlStore)
            asking = partial(store.joined, ORDER, "theirs"), partial(store.forget, 60.0)
            for ask in asking:
                await ask()  # so that it is prepared
            for ask in asking:
                other.execute(TAKE)
                other.execute(OLD)
                other.execute("BEGIN")
                other.execute("LOCK TABLE mutex_locks, doormans")
                other.execute("DELETE FROM mutex_locks")
                other.execute(OLD)
                asked = asyncio.ensure_future(ask())
                await wait_until(partial(waits, tables), 30)
                other.execute("COMMIT")
                assert await asked in (False, ("order", 2))


async def test_serializable_steps_that_meet(tables: str) -> None:
    """One of them is refused by the server, and tried again: no caller notices."""

    async def turns(locks: Locks) -> None:
        for _ in range(20):
            async with locks.rwlock("order", 1).reader.acquire(timeout=30):
                await asyncio.sleep(0)

    with psycopg.connect(tables, autocommit=True) as other:
        name, setting = tables.rpartition("/")[2], "default_transaction_isolation"
        other.execute(f"ALTER DATABASE {name} SET {setting} = serializable")
    async with (
        opened(tables, "pool") as first,
        opened(tables, "pool") as second,
        opened(tables, "pool") as third,
        asyncio.TaskGroup() as tasks,
    ):
        for locks in (first, second, third):
            tasks.create_task(turns(locks))


async def waits(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(WAITS).fetchone() != (0,)
