"""Locks over an async engine of SQLAlchemy's, which is the user's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import asyncpg
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.redis.connections import eventually
from tests.cas.tables import is_not_cut_off
from tests.renewals import renewed
from tests.servers.process import IP, free_port
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
]


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


# ----- Connections that a user lends, of either kind, when they are few or fail


MOST = 2


@asynccontextmanager
async def lent(kind: str, url: str) -> AsyncIterator[object]:
    """A pool or an engine, which has that many connections at most."""
    if kind == "pool":
        async with asyncpg.create_pool(url, min_size=0, max_size=MOST) as pool:
            yield pool
        return
    driven = url.replace("postgresql:", "postgresql+asyncpg:")
    engine = create_async_engine(driven, pool_size=MOST, max_overflow=0)
    yield engine
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await engine.dispose()


def one_of(given: Any) -> AbstractAsyncContextManager[object]:  # noqa: ANN401 - either
    """A connection, for its owner's own use."""
    taking = given.acquire if isinstance(given, asyncpg.Pool) else given.connect
    context: AbstractAsyncContextManager[object] = taking()
    return context


@pytest.mark.parametrize("kind", ["pool", "engine"])
async def test_a_pool_without_a_free_connection(tables: str, kind: str) -> None:
    async with (
        lent(kind, tables) as given,
        connect(PostgresqlBackend(given), connect_timeout=1) as locks,
    ):
        async with one_of(given), one_of(given):
            with pytest.raises(BackendUnavailable, match=r"in 1 s") as caught:
                await locks.mutex("order", 1).acquire(timeout=0)
            assert caught.value.nothing_done
        async with locks.mutex("order", 1):
            pass


@pytest.mark.parametrize("kind", ["pool", "engine"])
async def test_a_silent_server_costs_no_place(tables: str, kind: str) -> None:
    port = urlsplit(tables).port
    assert port is not None
    with Proxy(port) as proxy:
        through = tables.replace(f":{port}/", f":{proxy.port}/")
        async with lent(kind, through) as given:
            backend = PostgresqlBackend(given, call_timeout=1)
            async with connect(backend) as locks:
                async with locks.mutex("order", 1):
                    pass
                proxy.black_hole(on=True)
                for _ in range(MOST + 1):
                    with pytest.raises(LockError):
                        await locks.mutex("order", 1).acquire(timeout=1)
                proxy.black_hole(on=False)
                async with locks.mutex("order", 2).acquire(timeout=20):
                    pass


@pytest.mark.parametrize("kind", ["pool", "engine"])
async def test_one_whose_server_has_gone_is_not_used(tables: str, kind: str) -> None:
    """As after a restart: all that the pool keeps are dead, and known to be."""
    async with lent(kind, tables) as given:
        async with one_of(given) as one, one_of(given) as another:
            idle = [await beneath(one), await beneath(another)]
        with psycopg.connect(tables, autocommit=True) as admin:
            for connection in idle:
                pid = connection.get_server_pid()
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        await eventually(lambda: all(c.is_closed() for c in idle), "heard of it")
        async with connect(PostgresqlBackend(given)) as locks:
            for number in range(MOST):
                async with locks.mutex("order", number).acquire(timeout=0):
                    pass


async def test_a_pool_that_lends_open_transactions_is_refused(tables: str) -> None:
    """It would roll back what was reported as done: two holders."""

    async def begin(connection: Any) -> None:  # noqa: ANN401 - asyncpg's
        await connection.execute("BEGIN")

    async with asyncpg.create_pool(tables, max_size=MOST, min_size=0, setup=begin) as p:
        await refused(p)


async def test_an_engine_that_lends_open_transactions_is_refused(tables: str) -> None:
    """SQLAlchemy begins one by itself for a statement of a handler."""

    def tell(connection: Any, *_: object) -> None:  # noqa: ANN401 - SQLAlchemy's
        connection.cursor().execute("SET search_path = public")

    async with lent("engine", tables) as engine:
        listen(engine.sync_engine, "checkout", tell)  # type: ignore[attr-defined]
        await refused(engine)


async def refused(given: object) -> None:
    for _ in range(MOST + 1):  # it gets each connection back
        with pytest.raises(ConfigurationError, match="in an open transaction"):
            async with connect(PostgresqlBackend(given), connect_timeout=5):
                pass


async def test_the_reset_of_a_returned_connection_changes_no_reply(
    tables: str,
) -> None:
    """It resets it: a request of its own, which may fail or never be answered."""
    troubles: list[str] = []
    goes_on = asyncio.Event()

    async def reset(_: object) -> None:
        trouble = troubles.pop() if troubles else ""
        if trouble == "cut off":
            raise ConnectionError
        if trouble == "silent":
            await goes_on.wait()

    async with (
        asyncpg.create_pool(tables, min_size=0, reset=reset) as pool,
        connect(PostgresqlBackend(pool)) as locks,
    ):
        for trouble in ("cut off", "silent"):
            troubles.append(trouble)
            held = await locks.mutex("order", 1).acquire(timeout=5)
            assert await held.release()
            await eventually(lambda: not troubles, "came to that")
        goes_on.set()


async def test_making_the_tables_is_not_cut_off(tables: str) -> None:
    """Whoever is cancelled has the answer to what was asked; the connection is well."""
    port = urlsplit(tables).port
    assert port is not None
    with Proxy(port) as proxy:
        through = tables.replace(f":{port}/", f":{proxy.port}/")
        async with asyncpg.create_pool(through, min_size=0, max_size=1) as pool:
            backend = PostgresqlBackend(pool)
            await is_not_cut_off(backend.create_schema, proxy)


async def beneath(one: Any) -> asyncpg.Connection[Any]:  # noqa: ANN401 - either
    """The driver's connection."""
    if isinstance(one, AsyncConnection):
        found: asyncpg.Connection[Any] = (
            await one.get_raw_connection()
        ).driver_connection
        return found
    return one._con
