"""A user's SQLAlchemy engine: its connections, its errors, and who closes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.oracle import OracleBackend
from tests.backends.oracle.programs import seats
from tests.renewals import renewed
from tests.servers.oracle.client import IP, OracleUser
from tests.servers.oracle.functions import Function

pytestmark = pytest.mark.asyncio

ONE = text("SELECT 1 FROM dual")


def address(user: OracleUser) -> str:
    place = f"{user.name}:{user.password}@{IP}:{user.double.port}"
    return f"oracle+oracledb://{place}/?service_name={user.service}"


@asynccontextmanager
async def engine_of(
    user: OracleUser, url: str = "", *, how: dict[str, Any] | None = None
) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url or address(user), pool_size=2, **how or {})
    try:
        yield engine
    finally:
        user.well()
        await engine.dispose()


def busy(engine: AsyncEngine) -> int:
    count: int = engine.pool.checkedout()  # type: ignore[attr-defined]
    return count


async def answers(engine: AsyncEngine) -> None:
    """To its owner, as before."""
    async with engine.connect() as connection:
        assert (await connection.execute(ONE)).scalar() == 1


async def refused(engine: AsyncEngine, timeout: float = 20.0) -> LockError:
    with pytest.raises(LockError) as caught:
        async with connect(OracleBackend(engine), connect_timeout=timeout):
            pass
    return caught.value


@pytest.mark.parametrize("profile", ["12.2", "19c", "23ai"])
async def test_the_tables_are_made_and_used(
    oracle_user: OracleUser, profile: str
) -> None:
    user = oracle_user.at(profile)
    async with engine_of(user) as engine:
        backend = OracleBackend(engine)
        await backend.create_schema()
        await backend.create_schema()  # they are there
        assert busy(engine) == 0
        async with connect(backend) as locks, connect(user.url) as others:
            async with locks.mutex("order", 42) as held:
                assert held.fence > 0
                assert len(seats(user)) == 1
                assert await others.mutex("order", 42).try_acquire() is None
            async with others.mutex("order", 42):
                assert await locks.mutex("order", 42).try_acquire() is None
        assert busy(engine) == 0
        await answers(engine)


async def test_the_round_trips_of_a_step(user: OracleUser) -> None:
    """One round trip, and after it what the engine does with all it takes back."""
    async with engine_of(user) as engine, connect(OracleBackend(engine)) as locks:
        mutex = locks.mutex("order", 1)
        async with mutex:
            pass
        user.forget_calls()
        async with mutex:
            pass
        calls = [call.function for call in user.calls()]
        assert calls.count(Function.EXECUTE) + calls.count(Function.REEXECUTE) == 2
        assert set(calls) <= {Function.EXECUTE, Function.REEXECUTE, Function.ROLLBACK}
    spared = {"pool_reset_on_return": None}
    async with (
        engine_of(user, how=spared) as engine,
        connect(OracleBackend(engine)) as locks,
    ):
        async with locks.mutex("order", 1):
            pass
        user.forget_calls()
        async with locks.mutex("order", 1):
            pass
        assert len(user.calls()) == 2


@pytest.mark.usefixtures("renewed_often")
async def test_leases_are_renewed_through_the_loop_of_the_pool(
    user: OracleUser,
) -> None:
    async with engine_of(user) as engine:
        lent = connect(OracleBackend(engine))
        async with lent as locks, locks.mutex("order", 42) as held:
            await renewed(held)


async def test_an_unfit_database_is_reported(oracle_user: OracleUser) -> None:
    async with engine_of(oracle_user) as engine:
        error = await refused(engine)
        assert isinstance(error, Unsupported)
        assert "rwlock schema oracle" in str(error)
    wrong = address(oracle_user).replace(oracle_user.password, "wrong")
    async with engine_of(oracle_user, wrong) as engine:
        error = await refused(engine)
        assert isinstance(error, Unsupported)
        assert "ORA-01017" in str(error)
    async with engine_of(oracle_user, f"{address(oracle_user)}X") as engine:
        assert isinstance(await refused(engine), Unsupported)
    nobody = "oracle+oracledb://u:p@127.0.0.1:1/?service_name=X"
    async with engine_of(oracle_user, nobody) as engine:
        error = await refused(engine)
        assert isinstance(error, BackendUnavailable)
        assert error.nothing_done


async def test_no_connection_is_free(user: OracleUser) -> None:
    how = {"max_overflow": 0, "pool_timeout": 0.1}
    async with (
        engine_of(user, how=how) as engine,
        connect(OracleBackend(engine)) as locks,
    ):
        async with engine.connect(), engine.connect():
            with pytest.raises(BackendUnavailable, match="no connection was free"):
                await locks.mutex("order", 1).acquire(timeout=0)
        async with locks.mutex("order", 1):
            pass


async def test_a_killed_session_is_replaced(user: OracleUser) -> None:
    async with engine_of(user) as engine:
        async with connect(OracleBackend(engine)) as locks:
            async with locks.mutex("order", 1):
                pass
            user.rule("before", "kill", "mutex_locks")
            with pytest.raises(BackendUnavailable, match="ORA-00028"):
                await locks.mutex("order", 1).acquire(timeout=20)
            async with locks.mutex("order", 1).acquire(timeout=20):
                pass
        assert busy(engine) == 0
        await answers(engine)


async def test_a_silent_server_costs_no_place(user: OracleUser) -> None:
    how = {"max_overflow": 0}
    async with engine_of(user, how=how) as engine:
        backend = OracleBackend(engine, call_timeout=1)
        async with connect(backend) as locks:
            async with locks.mutex("order", 1):
                pass
            user.rule("before", "silence", "mutex_locks", times=2)
            with pytest.raises(LockError):
                await locks.mutex("order", 1).acquire(timeout=1)
            user.well()
            async with locks.mutex("order", 2).acquire(timeout=20):
                pass
        assert busy(engine) == 0
        await answers(engine)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (create_engine("sqlite://"), "sqlalchemy.engine.base.Engine is not"),
        (create_async_engine("postgresql+asyncpg://h/d"), "of postgresql\\+asyncpg is"),
    ],
)
async def test_engines_of_other_drivers_are_refused(
    engine: AsyncEngine, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        OracleBackend(engine)
    assert "create_async_engine" in caught.value.hint


async def test_under_trio_it_says_so(user: OracleUser) -> None:
    import trio  # noqa: PLC0415 - for this test alone

    async def used() -> None:
        with pytest.raises(ConfigurationError, match="asyncio loop"):
            async with connect(backend):
                pass

    async with engine_of(user) as engine:
        backend = OracleBackend(engine)
        await asyncio.to_thread(trio.run, used)
        await answers(engine)
