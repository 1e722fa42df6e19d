"""A user's own pool, and making the tables with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import oracledb
import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError, connect
from aiorwlock_remote.backends.oracle import OracleBackend
from tests.backends.oracle.programs import run
from tests.renewals import renewed
from tests.servers.oracle.client import OracleUser


@asynccontextmanager
async def pool_of(
    user: OracleUser,
    **more: Any,  # noqa: ANN401 - of the driver's
) -> AsyncIterator[oracledb.AsyncConnectionPool]:
    pool = oracledb.create_pool_async(**user.login, min=1, max=4, **more)
    try:
        yield pool
    finally:
        await asyncio.wait_for(pool.close(force=True), 5)


@pytest.mark.asyncio
async def test_the_tables_are_made(oracle_user: OracleUser) -> None:
    async with pool_of(oracle_user) as pool:
        backend = OracleBackend(pool)
        await backend.create_schema()
        await backend.create_schema()  # they are there
        async with connect(backend) as locks, locks.mutex("order", 42) as held:
            assert held.fence > 0
        assert pool.busy == 0
        async with pool.acquire() as connection:  # it is still open
            assert await connection.fetchone("SELECT 1 FROM dual") == (1,)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["LINGUISTIC", "ANSI"])
async def test_sessions_that_compare_by_language(user: OracleUser, how: str) -> None:
    """With NLS_SORT = BINARY_CI, say, "Order" and "order" were one row."""

    async def begin(connection: oracledb.AsyncConnection, _: str | None) -> None:
        await connection.execute(f"ALTER SESSION SET NLS_COMP = {how}")

    async with pool_of(user, session_callback=begin) as pool:
        says = rf"NLS_COMP is {how}.*ALTER SESSION SET NLS_COMP = BINARY"
        with pytest.raises(ConfigurationError, match=says):
            await connect(OracleBackend(pool))


@pytest.mark.asyncio
async def test_making_them_ends_at_a_silent_server(oracle_user: OracleUser) -> None:
    async with pool_of(oracle_user) as pool:
        oracle_user.hole("both")
        backend = OracleBackend(pool, call_timeout=1)
        with pytest.raises(BackendUnavailable):
            await asyncio.wait_for(backend.create_schema(), 10)
        oracle_user.well()


@pytest.mark.asyncio
async def test_making_them_cancelled_twice_leaves_nothing_in_the_pool(
    oracle_user: OracleUser,
) -> None:
    async with pool_of(oracle_user) as pool:
        oracle_user.latency(0.5)
        making = asyncio.ensure_future(OracleBackend(pool).create_schema())
        for _ in range(2):
            await asyncio.sleep(0.1)
            making.cancel()
        await asyncio.wait({making})
        oracle_user.well()
        async with pool.acquire() as connection:
            assert await connection.fetchone("SELECT 1 FROM dual") == (1,)


@pytest.mark.asyncio
@pytest.mark.usefixtures("renewed_often")
async def test_leases_are_renewed_through_the_loop_of_the_pool(
    user: OracleUser,
) -> None:
    async with pool_of(user) as pool:
        pooled = connect(OracleBackend(pool))
        async with pooled as locks, locks.mutex("order", 42) as held:
            await renewed(held)
            tickets = run(user, "SELECT ticket FROM mutex_locks")
            assert len(tickets) == 1


@pytest.mark.asyncio
async def test_a_pool_with_none_to_lend_has_sent_nothing(user: OracleUser) -> None:
    """The error says that nothing was done: there is nothing to withdraw."""
    pool = oracledb.create_pool_async(**user.login, min=1, max=1)
    async with connect(OracleBackend(pool)) as locks:
        order = locks.mutex("order", 42)
        pool.getmode = oracledb.POOL_GETMODE_NOWAIT
        async with pool.acquire():
            with pytest.raises(BackendUnavailable) as caught:
                await order.acquire(timeout=0)
            assert caught.value.nothing_done
        await asyncio.wait_for(pool.close(force=True), 5)
        with pytest.raises(BackendUnavailable) as caught:
            await order.acquire(timeout=0)
        assert caught.value.nothing_done


def test_its_repr_shows_no_password(user: OracleUser) -> None:
    async def shown() -> str:
        async with pool_of(user) as pool:
            return repr(OracleBackend(pool, schema="LOCKS"))

    assert asyncio.run(shown()) == "<OracleBackend of LOCKS>"


def test_under_trio_it_says_so(user: OracleUser) -> None:
    import trio  # noqa: PLC0415 - for this test alone

    pools: list[oracledb.AsyncConnectionPool] = []

    async def made() -> None:
        pools.append(oracledb.create_pool_async(**user.login, min=0, max=1))
        await pools[0].close()

    async def used() -> None:
        with pytest.raises(ConfigurationError, match="asyncio loop"):
            async with connect(OracleBackend(pools[0])):
                pass

    asyncio.run(made())
    trio.run(used)
