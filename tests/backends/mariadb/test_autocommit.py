"""Servers whose sessions begin without autocommit, whatever a driver says of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.backends.mariadb import AsyncmyBackend
from tests.backends.mariadb.pools import pool_of
from tests.backends.mariadb.products import product_of
from tests.recipes.django_settings import configure
from tests.recipes.fix_rows import LocksSite, mariadb_site
from tests.recipes.occupied_places import BOOK
from tests.recipes.occupied_tables import KINDS
from tests.recipes.row_sites import RowSite, opened
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import run

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

READERS = "SELECT read_lock_count FROM invoices WHERE id = 1"


@asynccontextmanager
async def engine_of(
    url: str,
    **more: Any,  # noqa: ANN401 - of create_async_engine
) -> AsyncIterator[AsyncmyBackend]:
    engine = create_async_engine(f"mysql+asyncmy:{url.partition(':')[2]}", **more)
    try:
        yield product_of(url).backend(engine)
    finally:
        await engine.dispose()


async def test_an_answered_step_is_committed(start_db: StartMariadb) -> None:
    """MySQL's greeting says "autocommit", and drivers believe it."""
    url = start_db(config={"autocommit": "0"}).url
    with mariadb_site(url) as site:
        await of_the_store(url)
        await of_rows(site)
        await of_occupied_objects(url)
    async with connect(url) as locks:
        found = {finding.name: finding async for finding in locks.examine()}
    assert found["autocommit"].value == "off in new sessions"


async def of_the_store(url: str) -> None:
    async with AsyncExitStack() as ends:
        ways: list[str | AsyncmyBackend] = [url]
        for autocommit in (True, False, None):
            pool = pool_of(url, autocommit=autocommit)
            ways.append(await ends.enter_async_context(pool))
        for more in ({}, {"isolation_level": "AUTOCOMMIT"}):
            engine = engine_of(url, **more)
            ways.append(await ends.enter_async_context(engine))
        users = [await ends.enter_async_context(connect(way)) for way in ways]
        for number in range(len(users)):
            one, two, three = (*users[number:], *users)[:3]
            await readers_keep_a_writer_out(one, two, three)
            await permits_are_limited(one, two, three)
            await a_row_is_locked(one, two)
            await a_grant_is_adopted(one, two, three)


async def of_rows(site: LocksSite) -> None:
    """By engines and by Django, whose drivers believe the same."""
    configure()
    from tests.integrations.fix_alchemy_rows import AlchemySite  # noqa: PLC0415
    from tests.integrations.fix_django_rows import DjangoSite  # noqa: PLC0415

    plain, url = site.plain, site.url
    rest = url.partition(":")[2]
    others: list[RowSite] = [
        DjangoSite(plain, url),
        AlchemySite(plain, f"mysql+asyncmy:{rest}"),
        AlchemySite(plain, f"mysql+aiomysql:{rest}"),
    ]
    async with connect(url) as locks:
        lock = locks.row_lock("invoices", 1)
        for other in others:
            async with opened(other) as lock_of:
                async with lock_of(1).write():
                    assert await lock.try_write() is None
                async with lock.read(), lock_of(1).read():
                    assert plain.rows(READERS) == [(2,)]
                async with lock.write(timeout=2):
                    assert await lock_of(1).try_write() is None


async def of_occupied_objects(url: str) -> None:
    for kind in KINDS.values():
        place = kind(url)
        place.make()
        async with place.open() as occupancy:
            async with occupancy.occupy(BOOK, who="alice"):
                pending, using = place.records()
                assert not pending
                assert len(using) == 1
            assert place.records() == ([], [])


async def readers_keep_a_writer_out(one: Locks, two: Locks, three: Locks) -> None:
    first = await one.rwlock("catalog", 7).reader.acquire()
    # It joins the first one: a step of one statement.
    second = await two.rwlock("catalog", 7).reader.acquire(timeout=2)
    await first.release()
    assert await three.rwlock("catalog", 7).writer.try_acquire() is None
    await second.release()
    async with three.rwlock("catalog", 7).writer.acquire(timeout=2):
        pass


async def permits_are_limited(*users: Locks) -> None:
    tried = [await user.semaphore("api", 1, limit=2).try_acquire() for user in users]
    given = [permit for permit in tried if permit is not None]
    assert len(given) == 2
    for permit in given:
        await permit.release()


async def a_row_is_locked(one: Locks, two: Locks) -> None:
    async with one.row_lock("invoices", 1).write():
        assert await two.row_lock("invoices", 1).try_write() is None
    async with two.row_lock("invoices", 1).write(timeout=2):
        assert await one.row_lock("invoices", 1).try_write() is None


async def a_grant_is_adopted(one: Locks, two: Locks, three: Locks) -> None:
    held = await one.mutex("order", 1).acquire()
    adopted = await two.adopt(held.detach())
    assert await three.mutex("order", 1).try_acquire() is None
    await adopted.extend()
    await adopted.release()
    async with three.mutex("order", 1).acquire(timeout=2):
        pass


async def test_a_transaction_of_the_users_is_not_committed(db_tables: str) -> None:
    """As one that a handler of SQLAlchemy's event left open."""
    run(db_tables, "CREATE TABLE notes (id int PRIMARY KEY)")
    async with engine_of(db_tables, pool_size=1, max_overflow=0) as backend:
        engine: Any = backend._pool._engine  # type: ignore[attr-defined]
        left = iter(range(100))

        @event.listens_for(engine.sync_engine, "checkout")
        def leave_one_open(connection: Any, *_: object) -> None:  # noqa: ANN401
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO notes VALUES (%s)", (next(left),))

        async with connect(backend) as locks:
            async with locks.rwlock("catalog", 7).reader as held:
                await held.extend()
            assert (await locks.mutex("order", 1).info()).holders == ()
    assert next(left)
    assert run(db_tables, "SELECT * FROM notes") == []
