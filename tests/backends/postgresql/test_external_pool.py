"""Connections that a user lends, of either kind, when they are few or fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    connect,
)
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from tests.backends.redis.connections import eventually
from tests.cas.tables import is_not_cut_off
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

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
