"""Row locks by models of Django: the suite of all row locks, and its own."""

from __future__ import annotations

import asyncio
import gc
import weakref

import anyio
import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.errors import AcquireUncertain
from aiorwlock_remote.integrations.django.row_lock import row_lock
from aiorwlock_remote.recipes import RowLock
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.integrations.fix_django_rows import DjangoSite, Invoice
from tests.recipes.fix_rows import port_of, postgresql_site, through
from tests.recipes.occupied_django import close, database
from tests.recipes.row_basics import RowLockBasics
from tests.recipes.row_sites import (
    FREE,
    LOCKED,
    PATIENCE,
    RowSite,
    attended,
    never_look_again,
    opened,
)
from tests.recipes.row_suite import RowLockSuite
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "Django knows no other loop"),
]


class TestSqlite(RowLockSuite):
    @pytest.fixture
    def site(self, django_shop: DjangoSite) -> RowSite:
        return django_shop


class TestPostgresql(RowLockBasics):
    @pytest.fixture
    def site(self, django_postgresql: DjangoSite) -> RowSite:
        return django_postgresql


class TestLeasedMariadb(RowLockBasics):
    @pytest.fixture
    def site(self, django_mariadb: DjangoSite) -> RowSite:
        django_mariadb.lease = 30.0
        return django_mariadb


class TestMysql(RowLockBasics):
    @pytest.fixture
    def site(self, django_mysql: DjangoSite) -> RowSite:
        return django_mysql


@pytest.mark.parametrize("lease", [None, 30])
async def test_saving_leaves_the_lock_alone(
    django_shop: DjangoSite, lease: float | None
) -> None:
    """What an instance was loaded with is older than the lock."""
    alias = database(django_shop.url)
    invoice = await Invoice.objects.using(alias).aget(pk=1)
    async with invoice.row_lock(lease=lease).write("saving"):
        invoice.total = 7
        await invoice.asave()
        assert django_shop.plain.stands() == (*LOCKED["write"], "saving")
        assert not django_shop.plain.step("RLock")
    assert django_shop.plain.state() == FREE
    assert django_shop.plain.rows("SELECT total FROM invoices WHERE id = 1") == [(7,)]
    new = Invoice(pk=9, total=3)
    await new.asave(using=alias)
    async with new.row_lock().read():
        assert django_shop.plain.state(9) == LOCKED["read"]
    await close(alias)


async def test_waiters_of_another_process_are_notified(
    tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row lock of ``connect`` that does not look: woken by Django's release."""
    never_look_again(monkeypatch)
    with postgresql_site(tables) as site:
        async with opened(DjangoSite(site.plain, tables)) as django_lock:
            held = await django_lock(1).write()
            async with opened(site) as lock_of, anyio.create_task_group() as group:
                group.start_soon(_wait, lock_of(1))
                await wait_until(lambda: attended(site.plain), PATIENCE)
                await held.release()
        assert site.plain.state() == FREE


async def _wait(lock: RowLock) -> None:
    with anyio.fail_after(PATIENCE):
        async with lock.write():
            pass


async def test_inside_of_atomic(django_shop: DjangoSite) -> None:
    """Nobody would see it: refused."""
    alias = database(django_shop.url)
    lock = row_lock(Invoice, 1, database=alias)
    begun = transaction.atomic(using=alias)
    await sync_to_async(begun.__enter__)()
    try:
        with pytest.raises(ConfigurationError, match="atomic"):
            await lock.write()
    finally:
        await sync_to_async(begun.__exit__)(None, None, None)
    async with lock.write():
        pass
    assert django_shop.plain.state() == FREE
    await close(alias)


async def test_a_server_that_came_back(django_postgresql: DjangoSite) -> None:
    """The reply was lost; the next lock has a connection again."""
    with Proxy(port_of(django_postgresql.url)) as proxy:
        alias = database(through(proxy, django_postgresql.url))
        lock = row_lock(Invoice, 1, database=alias)
        async with lock.read():
            pass
        proxy.cut_after(1, to="client")
        with pytest.raises(AcquireUncertain):
            await lock.read(timeout=5)
        assert django_postgresql.plain.state() == LOCKED["read"]
        async with row_lock(Invoice, 2, database=alias).write():
            assert django_postgresql.plain.state(2) == LOCKED["write"]
        await close(alias)


@pytest.mark.parametrize("lease", [None, 30])
async def test_a_connection_that_was_cut_meanwhile(
    django_postgresql: DjangoSite, lease: float | None
) -> None:
    """Whoever wants them to be looked at first, by Django's setting, gets out."""
    with Proxy(port_of(django_postgresql.url)) as proxy:
        alias = database(through(proxy, django_postgresql.url))
        connections.databases[alias]["CONN_HEALTH_CHECKS"] = True
        async with row_lock(Invoice, 1, lease=lease, database=alias).write():
            proxy.cut()
        assert django_postgresql.plain.state() == FREE
        await close(alias)


def test_outside_of_a_loop(django_shop: DjangoSite) -> None:
    with pytest.raises(ConfigurationError, match="loop"):
        row_lock(Invoice, 1, database=database(django_shop.url))


def test_loops_that_ended_are_forgotten(django_shop: DjangoSite) -> None:
    """``async_to_sync`` makes one for each call."""
    alias, loops = (
        database(django_shop.url),
        list[weakref.ref[asyncio.AbstractEventLoop]](),
    )

    async def view() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        async with row_lock(Invoice, 1, database=alias).write():
            assert django_shop.plain.state() == LOCKED["write"]

    for _ in range(3):
        asyncio.run(view())
    asyncio.run(close(alias))
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
