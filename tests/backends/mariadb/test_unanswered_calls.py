"""Calls that are not answered in time end by themselves, with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from unittest.mock import patch

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from aiorwlock_remote import BackendUnavailable, LockError, connect
from aiorwlock_remote.backends.mariadb import AsyncmyBackend, errors
from aiorwlock_remote.backends.mariadb.driver import Connection, run
from aiorwlock_remote.backends.mariadb.options import options_of
from aiorwlock_remote.cas.driver.pool import ConnectionPool, PooledRunner
from aiorwlock_remote.core.url import parse
from tests.backends.mariadb.conftest import speaking_tls
from tests.backends.mariadb.pools import pool_of
from tests.backends.mariadb.products import Product, product_of
from tests.cas.tables import is_not_cut_off
from tests.servers.certificates import Certificates
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import OWNER, Mariadb, MariadbServer
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

Asking = Callable[[Connection], Awaitable[object]]
LOST = 2013
"""The driver's code for a connection that ended under a call."""
AT_ONCE = 10.0
"""Seconds in which a call has ended; a TLS peer's goodbye is waited for much longer."""


@pytest.fixture
def server(start_db: StartMariadb, files: Certificates) -> Mariadb:
    """It speaks TLS to those who want to."""
    return start_db(config=speaking_tls(files))


def opened(url: str) -> tuple[PooledRunner[Connection], ConnectionPool[Connection]]:
    driver = product_of(url).driver(options_of(parse(url)))
    own = ConnectionPool(driver, 1)
    return PooledRunner(own, driver), own


async def ask(connection: Connection) -> object:
    return (await run(connection, "SELECT 1"))[0].rows


async def ask_much(connection: Connection) -> object:
    """It does not fit into what the kernel keeps."""
    return (await run(connection, f"SELECT '{'x' * 12_000_000}'"))[0].rows


async def ask_in_parts(unlimited: str, connection: Connection) -> object:
    """The first answer comes; the server must not give up by itself."""
    return (await run(connection, unlimited, "SELECT SLEEP(2)"))[0].rows


@contextmanager
def stopped(server: Mariadb) -> Iterator[None]:
    server.pause()
    yield
    server.resume()


@contextmanager
def swallowing(proxy: Proxy) -> Iterator[None]:
    proxy.black_hole(on=True)
    yield
    proxy.black_hole(on=False)


@pytest.mark.parametrize("way", ["tcp", "tls", "socket"])
async def test_a_late_call_is_ended_by_the_driver(
    server: Mariadb, product: Product, files: Certificates, way: str
) -> None:
    """With an error, at once, and not by a cancellation."""
    with Proxy(server.port) as proxy:
        base = f"{product.scheme}://{OWNER}@localhost:{proxy.port}/app?call_timeout=1"
        more = {
            "tcp": "",
            "tls": f"&tls=yes&ca_file={files.authority}",
            "socket": f"&socket={server.socket}",
        }
        carrier, own = opened(base + more[way])
        in_parts = partial(ask_in_parts, product.unlimited)
        await late(carrier, in_parts, nullcontext())
        for work in (ask, ask_much):
            await late(carrier, work, stopped(server))
            if way != "socket":
                await late(carrier, work, swallowing(proxy))
        await own.close()


async def late(
    carrier: PooledRunner[Connection],
    work: Asking,
    silent: AbstractContextManager[None],
) -> None:
    """Before and after it, connections are as they should be."""
    assert await carrier.carry(ask) == [(1,)]
    with silent, pytest.raises(BackendUnavailable, match="not answer") as caught:
        async with asyncio.timeout(AT_ONCE):
            await carrier.carry(work)
    assert caught.value.__cause__ is not None
    assert errors.code_of(caught.value.__cause__) == LOST
    assert not caught.value.nothing_done
    assert await carrier.carry(ask) == [(1,)]


async def test_a_call_costs_no_task(db_tables: str) -> None:
    carrier, own = opened(db_tables)
    await carrier.carry(ask)
    loop = asyncio.get_running_loop()
    with patch.object(loop, "create_task", wraps=loop.create_task) as task:
        for _ in range(10):
            await carrier.carry(ask)
    assert not task.called
    await own.close()


@asynccontextmanager
async def lent(kind: str, url: str) -> AsyncIterator[AsyncmyBackend]:
    """A pool or an engine of two connections at most."""
    if kind == "pool":
        async with pool_of(url, most=2, patience=1) as backend:
            yield backend
        return
    driven = f"mysql+asyncmy:{url.partition(':')[2]}"
    engine = create_async_engine(driven, pool_size=2, max_overflow=0)
    try:
        yield product_of(url).backend(engine, call_timeout=1)
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    finally:
        await engine.dispose()


@pytest.mark.parametrize("kind", ["pool", "engine"])
async def test_an_unanswered_call_keeps_no_connection_of_a_pool(
    db_tables: str, db_server: MariadbServer, kind: str
) -> None:
    with Proxy(db_server.port) as proxy:
        url = db_tables.replace(f":{db_server.port}/", f":{proxy.port}/")
        async with lent(kind, url) as backend, connect(backend) as locks:
            async with locks.mutex("order", 1):
                pass
            proxy.black_hole(on=True)
            for _ in range(3):
                with pytest.raises(LockError):
                    await locks.mutex("order", 1).acquire(timeout=1)
            proxy.black_hole(on=False)
            async with locks.mutex("order", 2).acquire(timeout=20):
                pass


async def test_making_the_tables_is_not_cut_off(
    db_tables: str, db_server: MariadbServer
) -> None:
    """Whoever is cancelled has the answer to what was asked; the connection is well."""
    with Proxy(db_server.port) as proxy:
        url = db_tables.replace(f":{db_server.port}/", f":{proxy.port}/")
        async with pool_of(url, most=1) as backend:
            await is_not_cut_off(backend.create_schema, proxy)
