"""Row locks by an engine of SQLAlchemy: what only they do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import anyio
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import QueuePool

from aiorwlock_remote import BackendUnavailable, ConfigurationError, LockLost
from aiorwlock_remote.errors import AcquireUncertain, LockBusy
from aiorwlock_remote.integrations.sqlalchemy.row_lock import (
    RowLockStatements,
    row_lock,
)
from tests.backends.redis.connections import eventually
from tests.integrations.fix_alchemy_rows import AlchemySite, Invoice, engine_of
from tests.recipes.fix_rows import port_of, through
from tests.recipes.row_sites import FREE, LOCKED, MODES, PATIENCE, ask
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.only_on("asyncio", "its engines know no other loop")


@on_asyncio
async def test_in_a_transaction_of_ones_own(alchemy_shop: AlchemySite) -> None:
    """The published UPDATEs: they count when it is committed."""
    words = RowLockStatements(Invoice, 1)
    async with engine_of(alchemy_shop) as engine, AsyncSession(engine) as session:
        await words.take(session, "write", "mine")
        assert alchemy_shop.plain.state() == FREE
        await session.commit()
        assert alchemy_shop.plain.stands() == ("WriteLock", 0, "mine")
        for mode in ("read", "write"):
            with pytest.raises(LockBusy) as caught:
                await words.take(session, mode)
            assert caught.value.holders == ("WriteLock: mine",)
        with pytest.raises(LockLost):
            await words.give(session, "read")
        await words.give(session, "write", "done")
        for count in (1, 2):
            await words.take(session, "read")
            found = (await session.execute(words.look())).one()
            assert tuple(found) == ("ReadLock", count, "")
        for statement in (words.read_unlock("x"), words.read_unlock("y")):
            await session.execute(statement)
        assert tuple((await session.execute(words.look())).one()) == (*FREE, "y")
        await session.rollback()
    assert alchemy_shop.plain.stands() == ("WriteLock", 0, "mine")
    async with engine_of(alchemy_shop) as engine, engine.begin() as connection:
        await words.give(connection, "write")
        with pytest.raises(ConfigurationError, match="no such row"):
            await RowLockStatements(Invoice, 99).take(connection, "read")
    assert alchemy_shop.plain.state() == FREE


@on_asyncio
async def test_a_mode_by_its_name() -> None:
    words = RowLockStatements(Invoice, 1)
    given: Any = "write"
    assert str(words.lock(given, "")) == str(words.write_lock())
    assert str(words.unlock(given, "")) == str(words.write_unlock())


@on_asyncio
async def test_a_session_is_left_alone(alchemy_shop: AlchemySite) -> None:
    """Its transaction sees the lock, and the lock does not see it."""
    async with engine_of(alchemy_shop) as engine, AsyncSession(engine) as session:
        invoice = await session.get_one(Invoice, 2)
        invoice.total = 7
        async with row_lock(session, Invoice, 1).write():
            assert alchemy_shop.plain.state() == LOCKED["write"]
            await session.rollback()
        assert alchemy_shop.plain.state() == FREE
        assert alchemy_shop.plain.rows("SELECT total FROM invoices WHERE id = 2") == [
            (0,)
        ]


@on_asyncio
async def test_new_rows_are_free(alchemy_shop: AlchemySite) -> None:
    async with engine_of(alchemy_shop) as engine, AsyncSession(engine) as session:
        session.add(Invoice(id=9))
        await session.commit()
        async with row_lock(session, Invoice, 9).write():
            assert alchemy_shop.plain.state(9) == LOCKED["write"]


@on_asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_a_lost_reply(alchemy_shop: AlchemySite, mode: str) -> None:
    with Proxy(port_of(alchemy_shop.url)) as proxy:
        there = AlchemySite(alchemy_shop.plain, through(proxy, alchemy_shop.url))
        async with engine_of(there) as engine:
            lock = row_lock(engine, Invoice, 1)
            async with ask(lock, mode)():
                pass
            proxy.cut_after(1, to="client")
            with pytest.raises(AcquireUncertain):
                await ask(lock, mode)(timeout=5)


@on_asyncio
async def test_a_driver_that_is_cancelled(alchemy_shop: AlchemySite) -> None:
    """By another task than the one that waits for the lock: the waiter is notified."""

    def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    async with engine_of(alchemy_shop) as engine:
        event.listen(engine.sync_engine, "before_cursor_execute", cancelled)
        with anyio.fail_after(PATIENCE), pytest.raises(AcquireUncertain):
            await row_lock(engine, Invoice, 1).read()


@on_asyncio
async def test_a_row_that_a_transaction_has_locked(alchemy_shop: AlchemySite) -> None:
    """The server waits for a bounded time; nothing is left that would lock it."""
    async with engine_of(alchemy_shop) as engine:
        alchemy_shop.plain.begin("UPDATE invoices SET total = 1 WHERE id = 1")
        with pytest.raises(BackendUnavailable) as caught:
            await row_lock(engine, Invoice, 1).write(timeout=0)
        assert caught.value.nothing_done
        alchemy_shop.plain.commit()
        assert alchemy_shop.plain.state() == FREE


@on_asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_a_connection_that_was_cut_meanwhile(
    alchemy_shop: AlchemySite, mode: str
) -> None:
    """The driver knows: nothing is uncertain, and what is held is given back."""
    lines: list[Any] = []
    with Proxy(port_of(alchemy_shop.url)) as proxy:
        engine = create_async_engine(through(proxy, alchemy_shop.url))
        event.listen(engine.sync_engine, "connect", lambda one, _: lines.append(one))
        async with ask(row_lock(engine, Invoice, 1), mode)():
            proxy.cut()
            closed = lines[0].driver_connection.is_closed
            await eventually(closed, "the driver sees it")
        assert alchemy_shop.plain.state() == FREE
        await engine.dispose()


@on_asyncio
async def test_a_dead_connection_leaves_its_place_in_the_pool(
    mariadb_tables: str,
) -> None:
    """To the engine's owner, too; whatever keeps the error meanwhile."""
    with Proxy(port_of(mariadb_tables)) as proxy:
        url = through(proxy, mariadb_tables).replace("mariadb:", "mariadb+asyncmy:")
        engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=9)
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        proxy.cut()
        with pytest.raises(BackendUnavailable) as kept:
            await row_lock(engine, Invoice, 1).look()
        pool = engine.sync_engine.pool
        assert isinstance(pool, QueuePool)
        assert pool.checkedout() == 0
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        del kept
        await engine.dispose()


@on_asyncio
async def test_a_server_that_is_not_there(alchemy_shop: AlchemySite) -> None:
    with Proxy(port_of(alchemy_shop.url)) as proxy:
        proxy.refuse()
        there = AlchemySite(alchemy_shop.plain, through(proxy, alchemy_shop.url))
        async with engine_of(there) as engine:
            with pytest.raises(BackendUnavailable) as caught:
                await row_lock(engine, Invoice, 1).read(timeout=0)
            assert caught.value.nothing_done


def test_engines_and_loops_that_ended_are_forgotten(alchemy_shop: AlchemySite) -> None:
    known: list[weakref.ref[object]] = []

    async def use() -> None:
        known.append(weakref.ref(asyncio.get_running_loop()))
        async with engine_of(alchemy_shop) as engine:
            known.append(weakref.ref(engine.sync_engine))
            async with row_lock(engine, Invoice, 1).write():
                assert alchemy_shop.plain.state() == LOCKED["write"]

    async def program() -> None:
        for _ in range(2):
            await use()

    asyncio.run(program())
    gc.collect()
    assert [one() for one in known] == [None] * 4
