"""What the driver does when a call is interrupted, and what we make of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import oracledb
import pytest

from aiorwlock_remote import Unsupported
from aiorwlock_remote.backends.oracle import driver as oracle
from aiorwlock_remote.backends.oracle.driver import (
    Connection,
    OracledbPool,
    OracleDriver,
    run_call,
)
from aiorwlock_remote.backends.oracle.options import Options, options_of
from aiorwlock_remote.cas.driver.external_pool import BorrowedConnections
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import BackendUnavailable
from tests.servers.certificates import Certificates
from tests.servers.oracle.client import OracleUser
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.asyncio

ASK = "SELECT 1 FROM dual"


def quick(user: OracleUser, **more: float) -> OracleDriver:
    """Of little patience."""
    limits = "&".join(f"{name}={value}" for name, value in more.items())
    address = parse(f"{user.url}?call_timeout=1&connections=2&{limits}".rstrip("&"))
    return OracleDriver(options_of(address, connect_timeout=2.0))


@asynccontextmanager
async def pool_of(user: OracleUser) -> AsyncIterator[oracledb.AsyncConnectionPool]:
    pool = oracledb.create_pool_async(**user.login, min=1, max=2)
    try:
        yield pool
    finally:
        await asyncio.wait_for(pool.close(force=True), 5)


async def ask(connection: Any) -> object:  # noqa: ANN401 - one of the driver's
    return await connection.fetchone(ASK)


# ------------------------------------------------- why no call is ever cancelled


async def test_a_cancelled_call_hangs_at_a_silent_server(user: OracleUser) -> None:
    connection = await oracledb.connect_async(**user.login)
    user.hole("both")
    call = asyncio.ensure_future(ask(connection))
    await asyncio.sleep(0.1)
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=0.5)
    assert not done
    connection.terminate()
    await asyncio.wait({call}, timeout=5)
    assert call.done()
    user.well()


async def test_the_call_timeout_ends_a_call_at_a_silent_server(
    user: OracleUser,
) -> None:
    connection = await oracledb.connect_async(**user.login)
    connection.call_timeout = 200
    user.hole("both")
    with pytest.raises(oracledb.DatabaseError):
        await asyncio.wait_for(asyncio.shield(ask(connection)), 5)
    assert not connection.is_healthy()
    user.well()


async def test_a_terminated_call_waits_for_the_goodbye_of_a_tls_peer(
    user: OracleUser, certificates: Certificates
) -> None:
    """Why no timer hangs up under a call: it would go on."""
    tls = ssl.create_default_context(cafile=certificates.authority)
    with user.double.tls(certificates) as port, Proxy(port) as proxy:
        connection = await oracledb.connect_async(
            user=user.name,
            password=user.password,
            host="localhost",
            port=proxy.port,
            service_name=user.service,
            protocol="tcps",
            ssl_context=tls,
        )
        proxy.black_hole(on=True)
        call = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0.1)
        connection.terminate()
        done, _ = await asyncio.wait({call}, timeout=0.5)
        assert not done
        proxy.cut()
        with pytest.raises(oracledb.Error):
            await asyncio.wait_for(call, 5)


# ------------------------------------------------------------------ our own ones


async def test_a_silent_server_is_given_up(user: OracleUser) -> None:
    driver = quick(user)
    own = ConnectionPool(driver, 2)
    await run_call(own, ask, driver)
    user.hole("both")
    with pytest.raises((BackendUnavailable, oracledb.DatabaseError)):
        await asyncio.wait_for(run_call(own, ask, driver), 5)
    user.well()
    assert await run_call(own, ask, driver) == (1,)
    await own.close()


async def test_a_call_that_never_ends_is_abandoned(
    user: OracleUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the driver's own time-out had failed."""
    monkeypatch.setattr(oracle, "CLOSE_TIMEOUT", 0.1)
    driver = quick(user)
    own = ConnectionPool(driver, 1)

    async def deaf(connection: Any) -> object:  # noqa: ANN401
        connection.call_timeout = 0
        return await ask(connection)

    await run_call(own, ask, driver)
    user.hole("both")
    with pytest.raises(BackendUnavailable, match="does not answer"):
        await run_call(own, deaf, driver)
    user.well()
    assert await run_call(own, ask, driver) == (1,)  # over another connection
    await own.close()


async def test_logging_in_at_a_silent_server(user: OracleUser) -> None:
    with Proxy(user.double.port) as proxy:
        nearby = replace(quick(user).options, port=proxy.port, connect_timeout=1.5)
        driver = OracleDriver(nearby)
        own = ConnectionPool(driver, 1)
        proxy.black_hole(on=True)
        with pytest.raises(BackendUnavailable) as caught:
            await run_call(own, ask, driver)
        assert caught.value.nothing_done
        proxy.black_hole(on=False)
        assert await run_call(own, ask, driver) == (1,)
        await own.close()


async def test_as_many_as_allowed_and_everybody_gets_a_turn(user: OracleUser) -> None:
    driver = quick(user)
    own = ConnectionPool(driver, 2)
    user.latency(0.005)
    user.forget_calls()
    calls = [run_call(own, ask, driver) for _ in range(40)]
    assert await asyncio.gather(*calls) == [(1,)] * 40
    assert len({call.session for call in user.calls()}) <= 2
    await own.close()


async def test_one_that_cannot_connect_says_so_to_all(user: OracleUser) -> None:
    driver = quick(user)
    own = ConnectionPool(driver, 2)
    user.account(28000)
    calls = [run_call(own, ask, driver) for _ in range(5)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, Unsupported) for error in errors), errors
    user.account(0)
    assert await run_call(own, ask, driver) == (1,)
    await own.close()


async def test_a_killed_session_is_not_used_again(user: OracleUser) -> None:
    driver = quick(user)
    own = ConnectionPool(driver, 1)
    await run_call(own, ask, driver)
    assert user.kill() == 1
    with pytest.raises(oracledb.DatabaseError):
        await run_call(own, ask, driver)
    assert await run_call(own, ask, driver) == (1,)
    await own.close()


# ------------------------------------------------------------- those of a pool


async def test_terminate_costs_a_pool_a_connection(user: OracleUser) -> None:
    """Why one of a pool is dropped instead, after its call has ended."""
    async with pool_of(user) as pool:
        connection = await pool.acquire()
        connection.terminate()
        with pytest.raises(oracledb.InterfaceError):
            await pool.drop(connection)
        assert pool.busy == 1


def lent(
    pool: oracledb.AsyncConnectionPool, driver: OracleDriver
) -> BorrowedConnections[Connection]:
    return BorrowedConnections(OracledbPool(pool), driver)


async def test_a_pool_keeps_its_size(user: OracleUser) -> None:
    driver = quick(user)
    async with pool_of(user) as pool:
        lines = lent(pool, driver)
        for _ in range(3):
            await run_call(lines, ask, driver)
            user.hole("both")
            with pytest.raises((BackendUnavailable, oracledb.DatabaseError)):
                await asyncio.wait_for(run_call(lines, ask, driver), 5)
            user.well()
        both = [run_call(lines, ask, driver) for _ in range(2)]
        assert await asyncio.gather(*both) == [(1,)] * 2
        assert pool.busy == 0


async def test_a_pool_gets_its_connections_back_as_they_were(user: OracleUser) -> None:
    async with pool_of(user) as pool:
        async with pool.acquire() as connection:
            connection.call_timeout = 12_345
        driver = quick(user)
        await run_call(lent(pool, driver), ask, driver)
        async with pool.acquire() as connection:
            assert connection.call_timeout == 12_345


async def test_a_pool_without_a_free_connection(user: OracleUser) -> None:
    driver = OracleDriver(Options(connect_timeout=0.2))
    async with pool_of(user) as pool:
        async with pool.acquire(), pool.acquire():
            with pytest.raises(BackendUnavailable) as caught:
                await run_call(lent(pool, driver), ask, driver)
            assert caught.value.nothing_done
        assert await run_call(lent(pool, driver), ask, driver) == (1,)
