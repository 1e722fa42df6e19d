"""A user's own pool, and making the tables with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from aiorwlock_remote import BackendUnavailable, ConfigurationError, Locks, connect
from aiorwlock_remote.backends.mariadb import AsyncmyBackend, driver
from aiorwlock_remote.backends.mariadb.driver import AsyncmyPool
from aiorwlock_remote.backends.mariadb.errors import Error
from tests.backends.mariadb.pools import FOUND_ROWS, STRICT, pool_of
from tests.backends.mariadb.products import kill, product_of, sessions
from tests.renewals import renewed
from tests.servers.mariadb import run

pytestmark = pytest.mark.slow

OPEN_HERE = (
    "SELECT count(*) FROM information_schema.innodb_trx"
    " WHERE trx_mysql_thread_id = CONNECTION_ID()"
)
"""Transactions of the session that asks."""


@pytest.mark.asyncio
async def test_the_tables_are_made(db_empty: str) -> None:
    async with pool_of(db_empty) as backend:
        await backend.create_schema()
        await backend.create_schema()  # they are there
        async with connect(backend) as locks, connect(db_empty) as others:
            async with locks.mutex("order", 42) as held:
                assert held.fence > 0
                assert await others.mutex("order", 42).try_acquire() is None
            async with others.mutex("order", 42):
                assert await locks.mutex("order", 42).try_acquire() is None
            async with locks.rwlock("catalog", 7).reader:
                assert len([d async for d in others.list()]) == 1
        pool = pool_in(backend)
        assert not pool._used
        async with pool.acquire() as connection:  # it is still open
            assert not connection.get_autocommit()
            assert not connection.get_transaction_status()


@pytest.mark.asyncio
async def test_no_transaction_is_left_open_in_a_pool(db_tables: str) -> None:
    """A transaction that stays open keeps anybody from changing the tables."""
    async with pool_of(db_tables) as backend, connect(backend) as locks:
        async with locks.mutex("order", 1):
            held = await locks.mutex("order", 1).info()
            assert held.holders
        alter(db_tables)


@pytest.mark.asyncio
@pytest.mark.parametrize("autocommit", [None, False, True])
async def test_its_connections_are_used_again(
    db_tables: str, autocommit: bool | None
) -> None:
    """Asyncmy's pool closes what comes back with a transaction that seems open."""
    more: dict[str, Any] = {} if autocommit is None else {"autocommit": autocommit}
    async with pool_of(db_tables, **more) as backend, connect(backend) as locks:
        pool, used = pool_in(backend), set[int]()
        for number in range(10):
            async with locks.rwlock("catalog", 7).reader as held:
                assert held.fence
            assert (await locks.mutex("order", number).info()).holders == ()
            used |= {connection.thread_id() for connection in pool._free}
        assert len(used) == 1


@pytest.mark.asyncio
async def test_a_request_that_failed_leaves_no_transaction_open(
    db_tables: str,
) -> None:
    fails = """SELECT (SELECT 1 UNION SELECT 2) FROM doormans RIGHT JOIN
        (SELECT 1) AS one ON 1"""
    async with pool_of(db_tables) as backend:
        async with pool_in(backend).acquire() as connection:
            with pytest.raises(Error, match="more than 1 row"):
                await driver.run(connection, fails)
            (result,) = await driver.read(connection, OPEN_HERE)
            assert result.rows == [(0,)]
        assert connection in pool_in(backend)._free


@pytest.mark.asyncio
@pytest.mark.usefixtures("renewed_often")
async def test_leases_are_renewed_through_the_loop_of_the_pool(db_tables: str) -> None:
    async with (
        pool_of(db_tables) as backend,
        connect(backend) as locks,
        locks.mutex("order", 42) as held,
    ):
        await renewed(held)


@pytest.mark.asyncio
async def test_tables_in_another_database(db_tables: str) -> None:
    name = db_tables.rpartition("/")[2]
    async with pool_of(db_tables, database="") as backend:
        with pytest.raises(ConfigurationError, match="in no database"):
            async with connect(backend):
                pass
    async with pool_of(db_tables, database=name) as backend:
        assert repr(backend) == f"<{product_of(db_tables).backend.__name__} of {name}>"
        own, other = connect(backend), connect(db_tables)
        async with own as locks, other as others, locks.mutex("order", 42):
            assert await others.mutex("order", 42).try_acquire() is None
            assert [d async for d in locks.list()]


@pytest.mark.asyncio
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"])
async def test_any_other_isolation_will_do(db_tables: str, level: str) -> None:
    begin = f"{STRICT}; SET SESSION TRANSACTION ISOLATION LEVEL {level}"
    async with (
        pool_of(db_tables, init_command=begin) as one,
        pool_of(db_tables, init_command=begin, client_flag=FOUND_ROWS) as two,
        connect(one) as locks,
        connect(two) as others,
    ):
        held: set[object] = set()

        async def turns(own: Locks) -> None:
            for _ in range(5):
                async with own.mutex("order", 1) as grant:
                    assert not held
                    held.add(grant)
                    await asyncio.sleep(0)
                    held.remove(grant)
                async with own.rwlock("order", 1).reader:
                    assert not held

        async with asyncio.TaskGroup() as group:
            for own in (locks, others) * 3:
                group.create_task(turns(own))


@pytest.mark.asyncio
async def test_reading_what_is_not_committed_is_refused(db_tables: str) -> None:
    level = "SET SESSION TRANSACTION ISOLATION LEVEL READ"
    begin = f"{STRICT}; {level} UNCOMMITTED"
    async with pool_of(db_tables, init_command=begin) as backend:
        with pytest.raises(ConfigurationError, match=f"{level} COMMITTED"):
            async with connect(backend):
                pass


@pytest.mark.asyncio
async def test_cutting_long_names_is_refused(db_tables: str) -> None:
    begin = "SET SESSION sql_mode = ''"
    async with pool_of(db_tables, init_command=begin) as backend:
        with pytest.raises(ConfigurationError, match="STRICT_ALL_TABLES"):
            async with connect(backend):
                pass


@pytest.mark.asyncio
async def test_a_pool_without_a_free_connection(db_tables: str) -> None:
    async with (
        pool_of(db_tables, most=1) as backend,
        connect(backend, connect_timeout=1) as locks,
    ):
        async with pool_in(backend).acquire():
            with pytest.raises(BackendUnavailable, match="no connection") as caught:
                await locks.mutex("order", 1).acquire(timeout=0)
            assert caught.value.nothing_done
        async with locks.mutex("order", 1):
            pass


@pytest.mark.asyncio
async def test_a_read_only_server(db_tables: str) -> None:
    """One that says so when it is asked to write, as a replica does."""
    begin = f"{STRICT}; SET SESSION TRANSACTION READ ONLY"
    async with pool_of(db_tables, init_command=begin) as backend:
        with pytest.raises(BackendUnavailable, match="READ ONLY") as caught:
            async with connect(backend) as locks:
                await locks.mutex("order", 1).acquire(timeout=0)
        assert caught.value.nothing_done


@pytest.mark.asyncio
@pytest.mark.usefixtures("renewed_often")
async def test_an_engine_of_sqlalchemy(db_tables: str) -> None:
    """Its connections count rows found, and begin transactions by themselves."""
    url = f"mysql+asyncmy:{db_tables.partition(':')[2]}"
    engine = create_async_engine(url, pool_size=2, max_overflow=0)
    one = text("SELECT 1")
    try:
        backend = product_of(db_tables).backend(engine)
        await backend.create_schema()
        async with (
            connect(backend, connect_timeout=1) as locks,
            connect(db_tables) as others,
        ):
            async with locks.mutex("order", 1) as held:
                assert await others.mutex("order", 1).try_acquire() is None
                await renewed(held)
            async with others.mutex("order", 1):
                assert await locks.mutex("order", 1).try_acquire() is None
            async with engine.connect(), engine.connect():
                with pytest.raises(BackendUnavailable, match="no connection") as caught:
                    await locks.mutex("order", 1).acquire(timeout=0)
                assert caught.value.nothing_done
            kill(db_tables, *sessions(db_tables, "command = 'Sleep'"))
            await asyncio.sleep(0.2)  # the loop has seen that they are gone
            async with locks.mutex("order", 1):
                run(
                    db_tables,
                    "SET lock_wait_timeout=5",
                    "ALTER TABLE doormans FORCE",
                )
        async with engine.connect() as connection:
            assert (await connection.execute(one)).scalar() == 1
    finally:
        await engine.dispose()
    with pytest.raises(ConfigurationError, match="an engine of sqlite"):
        product_of(db_tables).backend(create_async_engine("sqlite+aiosqlite://"))


def alter(url: str) -> None:
    """As nobody can while a transaction is open that has read it."""
    run(url, "SET lock_wait_timeout = 5", "ALTER TABLE doormans FORCE")


def pool_in(backend: AsyncmyBackend) -> Any:  # noqa: ANN401 - asyncmy's
    assert isinstance(backend._pool, AsyncmyPool)
    return backend._pool._pool


def test_under_trio_it_says_so(db_tables: str) -> None:
    import trio  # noqa: PLC0415 - for this test alone

    backends: list[AsyncmyBackend] = []

    async def made() -> None:
        async with pool_of(db_tables) as backend:
            backends.append(backend)

    async def used() -> None:
        with pytest.raises(ConfigurationError, match="asyncio loop"):
            async with connect(backends[0]):
                pass

    asyncio.run(made())
    trio.run(used)
