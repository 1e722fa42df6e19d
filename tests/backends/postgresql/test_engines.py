"""Locks over an async engine of SQLAlchemy's, which is the user's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.renewals import renewed
from tests.servers.process import IP, free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest_asyncio.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(driven(database), pool_size=2, max_overflow=0)
    yield made
    await made.dispose()


def driven(url: str, driver: str = "asyncpg") -> str:
    return url.replace("postgresql:", f"postgresql+{driver}:")


@pytest.mark.usefixtures("renewed_often")
async def test_the_engine_lends_connections_and_gets_them_back(
    engine: AsyncEngine, database: str
) -> None:
    backend = PostgresqlBackend(engine)
    await backend.create_schema()
    async with connect(backend) as locks, connect(database) as others:
        held = await others.mutex("order", 1).acquire()
        async with anyio.create_task_group() as group:

            async def take() -> None:
                async with locks.mutex("order", 1):
                    pass

            for _ in range(20):
                group.start_soon(take)
            await wait_until(lambda: waits(database), 30)
            await held.release()
        async with locks.mutex("kept", 1) as kept:
            await renewed(kept)
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1


async def test_a_broken_connection_is_replaced(
    engine: AsyncEngine, database: str
) -> None:
    backend = PostgresqlBackend(engine)
    await backend.create_schema()
    async with connect(backend) as locks:
        async with locks.mutex("order", 1):
            pass
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(CUT)
        for _ in range(4):  # as many failures as there were connections, at most
            try:
                async with locks.mutex("order", 2):
                    break
            except BackendUnavailable:
                continue
        async with locks.mutex("order", 1):
            pass
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_no_connection_is_left(engine: AsyncEngine) -> None:
    backend = PostgresqlBackend(engine)
    await backend.create_schema()
    async with engine.connect(), engine.connect():
        with pytest.raises(BackendUnavailable, match=r"in 0\.3 s"):
            async with connect(backend, connect_timeout=0.3):
                pass
    async with connect(backend) as locks, locks.mutex("order", 1):
        pass


async def test_errors_of_an_engine_that_cannot_connect(database: str) -> None:
    nowhere = f"postgresql+asyncpg://me@{IP}:{free_port()}/app"
    for url, error, message in (
        (driven(f"{database}x"), Unsupported, "does not exist"),
        (nowhere, BackendUnavailable, "the pool"),
    ):
        engine = create_async_engine(url)
        with pytest.raises(error, match=message):
            async with connect(PostgresqlBackend(engine)):
                pass
        await engine.dispose()


async def test_another_engine(database: str) -> None:
    engine = create_async_engine(driven(database, "psycopg"))
    for other in (engine, engine.sync_engine, database):
        with pytest.raises(
            ConfigurationError, match="is not an asyncio pool of asyncpg"
        ):
            PostgresqlBackend(other)


async def waits(url: str) -> bool:
    async with connect(url) as locks:
        return bool((await locks.mutex("order", 1).info()).queue)
