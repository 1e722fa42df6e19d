"""Row locks by an engine of SQLAlchemy, by the suite of all row locks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import QueuePool

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockLost,
    Unsupported,
)
from aiorwlock_remote.errors import AcquireUncertain, LockBusy
from aiorwlock_remote.integrations.sqlalchemy.row_lock import (
    RowLockStatements,
    row_lock,
)
from tests.backends.redis.connections import eventually
from tests.integrations.fix_alchemy_rows import AlchemySite, Invoice, engine_of
from tests.recipes.fix_rows import mariadb_site, port_of, sqlite_site, through
from tests.recipes.row_sites import FREE, LOCKED, MODES, PATIENCE, RowSite, ask, site_of
from tests.recipes.row_suite import RowLockBasics, RowLockSuite
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.anyio


on_asyncio = pytest.mark.only_on("asyncio", "its engines know no other loop")


@pytest.fixture
def mariadb(mariadb_empty: str) -> Iterator[RowSite]:
    with mariadb_site(mariadb_empty) as site:
        url = mariadb_empty.replace("mariadb:", "mysql+asyncmy:")
        yield AlchemySite(site.plain, url)


@pytest.fixture
def mysql_by_asyncmy(mysql_empty: str) -> Iterator[RowSite]:
    with mariadb_site(mysql_empty) as site:
        yield AlchemySite(site.plain, mysql_empty.replace("mysql:", "mysql+asyncmy:"))


@pytest.fixture
def mysql_by_aiomysql(mysql_by_asyncmy: AlchemySite) -> RowSite:
    url = mysql_by_asyncmy.url.replace("asyncmy", "aiomysql")
    return AlchemySite(mysql_by_asyncmy.plain, url)


@on_asyncio
class TestSqlite(RowLockSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[RowSite]:
        with sqlite_site(tmp_path) as site:
            # The other program blocks this loop, which must not be in its way: a read
            # of aiosqlite ends only when the loop goes on.
            site.plain.rows("PRAGMA journal_mode=WAL")
            path = site.url.partition("?rows=")[2]
            yield AlchemySite(site.plain, f"sqlite+aiosqlite:///{path}?timeout=20")


@on_asyncio
class TestPostgresql(RowLockSuite):
    site = site_of("alchemy_shop")


@on_asyncio
class TestMariadb(RowLockSuite):
    site = site_of("mariadb")


@on_asyncio
class TestLeasedMariadb(RowLockBasics):
    site = site_of("mariadb", 30.0)


@on_asyncio
class TestMysql(RowLockSuite):
    site = site_of("mysql_by_asyncmy")


@on_asyncio
class TestLeasedMysqlByAiomysql(RowLockBasics):
    site = site_of("mysql_by_aiomysql", 30.0)


# ---------------------- Row locks by an engine of SQLAlchemy: what only they do


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


# ------------------------------------------------------------------------------
# Row locks by an engine of SQLAlchemy: what is refused, and what is said of it.


@pytest.mark.parametrize("bad", [None, "x", "", 5, []])
@on_asyncio
async def test_a_mode_that_is_none(bad: Any) -> None:  # noqa: ANN401 - of any type
    words, session = RowLockStatements(Invoice, 1), cast("AsyncSession", None)
    for call in (words.take, words.give):
        with pytest.raises(ConfigurationError, match="mode"):
            await call(session, bad)
    for make in (words.lock, words.unlock):
        with pytest.raises(ConfigurationError, match="mode"):
            make(bad, "")


@on_asyncio
async def test_rows_that_cannot_be_locked_are_refused(
    alchemy_shop: AlchemySite,
) -> None:
    bare = Table("bare", MetaData(), Column("id", Integer, primary_key=True))
    pair = Table(
        "pair", MetaData(), *(Column(n, Integer, primary_key=True) for n in "ab")
    )
    async with engine_of(alchemy_shop) as engine:
        for table in (bare, pair, "invoices", None):
            with pytest.raises(ConfigurationError):
                row_lock(engine, table, 1)  # type: ignore[arg-type]
        for engineless in (None, engine.sync_engine, AsyncSession()):
            with pytest.raises(ConfigurationError):
                row_lock(engineless, Invoice, 1)  # type: ignore[arg-type]
        for key in (None, True, "", "a\0b", 2**70):
            with pytest.raises(ConfigurationError, match="a row's key"):
                row_lock(engine, Invoice, key)
        for unfit in ("one", [1]):
            with pytest.raises((ConfigurationError, Unsupported)) as caught:
                await row_lock(engine, Invoice, unfit).read()
            assert "sqlalche.me" not in str(caught.value)
            assert "SQL:" not in str(caught.value)


@on_asyncio
@pytest.mark.parametrize(
    "key", [Invoice.id, Invoice, select(Invoice.id), [1], (1,), {1}, {"id": 1}]
)
async def test_keys_that_are_no_values(alchemy_shop: AlchemySite, key: Any) -> None:  # noqa: ANN401 - of any type
    """An expression would be true of other rows, whose locks are others'."""
    async with engine_of(alchemy_shop) as engine, row_lock(engine, Invoice, 2).write():
        with pytest.raises(ConfigurationError, match="value"):
            await row_lock(engine, Invoice, key).write(timeout=0)
        assert alchemy_shop.plain.state(2) == LOCKED["write"]


@on_asyncio
@pytest.mark.parametrize("lease", [None, 30.0])
async def test_keys_that_no_driver_takes(
    alchemy_shop: AlchemySite, lease: float | None, tmp_path: Path
) -> None:
    """It was not asked: nothing is uncertain."""
    with sqlite_site(tmp_path) as site:
        path = site.url.partition("?rows=")[2]
        for url in (alchemy_shop.url, f"sqlite+aiosqlite:///{path}"):
            engine = create_async_engine(url)
            with pytest.raises(ConfigurationError, match="key"):
                await row_lock(engine, Invoice, object(), lease=lease).write(timeout=0)
            await engine.dispose()


@on_asyncio
async def test_a_constraint_of_the_table(alchemy_shop: AlchemySite) -> None:
    """What else is in the row is nobody's business."""
    alchemy_shop.plain.run("ALTER TABLE invoices ADD account text DEFAULT 'iban DE89'")
    alchemy_shop.plain.run(
        "ALTER TABLE invoices ADD CONSTRAINT none CHECK (lock_reason = '')"
    )
    async with engine_of(alchemy_shop) as engine:
        with pytest.raises(ConfigurationError, match='"none"') as caught:
            await row_lock(engine, Invoice, 1).read("why")
        assert "iban" not in str(caught.value)
        assert "constraint" in caught.value.hint


@on_asyncio
async def test_a_right_that_is_missing(alchemy_shop: AlchemySite) -> None:
    role = f"clerk_{alchemy_shop.url.rpartition('/')[2]}"
    alchemy_shop.plain.run(f"CREATE ROLE {role} LOGIN")
    alchemy_shop.plain.run(f"GRANT SELECT ON invoices TO {role}")
    before, _, after = alchemy_shop.url.partition("://")
    url = f"{before}://{role}@{after.rpartition('@')[2]}"
    try:
        async with engine_of(AlchemySite(alchemy_shop.plain, url)) as engine:
            with pytest.raises(Unsupported, match="denied") as caught:
                await row_lock(engine, Invoice, 1).read()
            assert "GRANT SELECT, UPDATE" in caught.value.hint
    finally:
        alchemy_shop.plain.run(f"DROP OWNED BY {role}")
        alchemy_shop.plain.run(f"DROP ROLE {role}")


@on_asyncio
async def test_not_where_all_connections_are_one() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    for where in (engine, AsyncSession(engine)):
        with pytest.raises(ConfigurationError, match="connections are one"):
            row_lock(where, Invoice, 1)


@pytest.mark.only_on("trio", "where it cannot be")
async def test_not_under_trio() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ConfigurationError, match="asyncio"):
        row_lock(engine, Invoice, 1)
