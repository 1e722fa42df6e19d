"""Rows that another program keeps locked: the other locks of the process are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import anyio
import asyncpg
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from tests.backends.oracle.programs import make_tables
from tests.renewals import renewed
from tests.servers.oracle.client import OracleUser
from tests.servers.plain import PlainMariadb, PlainOracle, PlainPostgresql

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

Connected = Callable[[], AbstractContextManager[Any]]

LOCK = (
    "SELECT resource_id FROM doormans"
    " WHERE resource_type = 'order' AND resource_id = {} FOR UPDATE"
)
LEASE = 6.0
"""Shorter than the 4 s that a request waits for each of the rows."""
STUCK = range(8)
FREE = range(100, 122)
POOL = 5


@contextmanager
def kept_locked(connected: Connected) -> Iterator[None]:
    """The doormen of the ``STUCK``, by a transaction that does nothing else."""
    locked, over = threading.Event(), threading.Event()

    def keep() -> None:
        with connected() as connection, connection.cursor() as cursor:
            if hasattr(connection, "begin"):
                connection.begin()
            for number in STUCK:  # one by one: MariaDB locks all rows that it reads
                cursor.execute(LOCK.format(number))
                assert cursor.fetchone()
            locked.set()
            over.wait(60)
            connection.rollback()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        assert locked.wait(30)
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(params=["postgresql", "mariadb", "mysql", "oracle"])
def store(request: pytest.FixtureRequest) -> tuple[str, Connected]:
    """Its URL, and another program's way to it."""
    kind: str = request.param
    if kind in {"mariadb", "mysql"}:
        url: str = request.getfixturevalue(f"{kind}_tables")
        return url, PlainMariadb(url, "").connected
    if kind == "oracle":
        user: OracleUser = request.getfixturevalue("oracle_user")
        make_tables(user)
        return user.url, PlainOracle(user, "").connected
    url = request.getfixturevalue("tables")
    return url, PlainPostgresql(url, "").connected


async def others_are_kept(given: str | PostgresqlBackend, connected: Connected) -> None:
    """They are renewed twice while those rows are locked."""
    async with connect(given) as locks:
        orders = [
            locks.mutex("order", number, lease=LEASE) for number in (*STUCK, *FREE)
        ]
        helds = [await order.acquire() for order in orders]
        keeping = kept_locked(connected)
        await anyio.to_thread.run_sync(keeping.__enter__)
        try:
            async with anyio.create_task_group() as tasks:
                for held in helds[len(STUCK) :]:
                    tasks.start_soon(renewed, held)
        finally:
            await anyio.to_thread.run_sync(keeping.__exit__, None, None, None)
        for held in helds:
            await held.release()


async def test_no_other_lock_is_lost(store: tuple[str, Connected]) -> None:
    await others_are_kept(*store)


async def test_no_other_lock_is_lost_over_a_pool_of_few(tables: str) -> None:
    """Requests that wait for the locked rows leave a connection to renewals."""
    async with asyncpg.create_pool(tables, min_size=0, max_size=POOL) as pool:
        backend = PostgresqlBackend(pool)
        await others_are_kept(backend, PlainPostgresql(tables, "").connected)
