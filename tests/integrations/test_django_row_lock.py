"""Row locks by models of Django: the suite of all row locks, and its own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest
from asgiref.sync import sync_to_async
from django.db import connections, models, transaction
from django.test import override_settings

from aiorwlock_remote import ConfigurationError, WouldDeadlock
from aiorwlock_remote.errors import AcquireUncertain
from aiorwlock_remote.integrations.django.row_lock import RowLockFields, row_lock
from aiorwlock_remote.recipes import RowLock
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.integrations.fix_django_rows import DjangoSite, Invoice
from tests.recipes.fix_rows import port_of, postgresql_site, sqlite_site, through
from tests.recipes.occupied_django import close, database
from tests.recipes.row_sites import (
    FREE,
    LOCKED,
    PATIENCE,
    attended,
    never_look_again,
    opened,
    site_of,
)
from tests.recipes.row_suite import RowLockBasics, RowLockSuite
from tests.servers.proxy import Proxy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "Django knows no other loop"),
]


class TestSqlite(RowLockSuite):
    site = site_of("django_shop")


class TestPostgresql(RowLockBasics):
    site = site_of("django_postgresql")


class TestLeasedMariadb(RowLockBasics):
    site = site_of("django_mariadb", 30.0)


class TestMysql(RowLockBasics):
    site = site_of("django_mysql")


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


# -------- Row locks by models of Django: which table, which key, which database


class Plain(models.Model):
    """Without the fields."""

    class Meta:
        app_label = "tests_plain"
        managed = False


async def test_rows_that_cannot_be_locked_are_refused(django_shop: DjangoSite) -> None:
    alias = database(django_shop.url)
    with pytest.raises(ConfigurationError, match="has no field"):
        row_lock(Plain, 1, database=alias)
    with pytest.raises(ConfigurationError, match="not saved"):
        Invoice().row_lock()
    with pytest.raises(ConfigurationError, match="nowhere"):
        row_lock(Invoice, 1, database="nowhere")
    with pytest.raises(ConfigurationError):
        row_lock(Invoice, 1, lease=0, database=alias)


class Ticketed(RowLockFields):
    """With a key as many have it."""

    id: Any = models.UUIDField(primary_key=True)

    class Meta:
        app_label = "tests_uuid"
        db_table = "ticketed"


@pytest.mark.parametrize("name", ["shop", "postgresql", "mariadb", "mysql"])
async def test_keys_that_are_uuids(name: str, request: pytest.FixtureRequest) -> None:
    """Each database has its own way of writing them."""
    site: DjangoSite = request.getfixturevalue(f"django_{name}")
    alias, key = database(site.url), UUID(int=7)

    def make() -> None:
        with connections[alias].schema_editor() as editor:
            editor.create_model(Ticketed)
        Ticketed.objects.using(alias).create(pk=key)

    await sync_to_async(make)()
    for pk in (key, str(key)):
        async with row_lock(Ticketed, pk, database=alias).write("mine"):
            found = await Ticketed.objects.using(alias).aget(pk=key)
            assert (found.lock_mark, found.lock_reason) == ("WriteLock", "mine")
    with pytest.raises(ConfigurationError, match="no key"):
        row_lock(Ticketed, "7", database=alias)
    await close(alias)


class Pro(Invoice):
    """With a table of its own, beside that of the invoice's."""

    class Meta:
        app_label = "tests"
        db_table = "pro_invoices"


class Quote(models.Model):
    """Another parent."""

    quote_id: Any = models.AutoField(primary_key=True)

    class Meta:
        app_label = "tests"


class Late(Quote, Invoice):
    """Its key is that of the quote, its lock that of the invoice."""

    class Meta:
        app_label = "tests"


async def test_a_model_with_a_table_for_its_parents(django_shop: DjangoSite) -> None:
    """The lock is where its fields are: one for both models."""
    alias = database(django_shop.url)
    async with row_lock(Pro, 1, database=alias).write("mine"):
        assert django_shop.plain.stands(1) == (*LOCKED["write"], "mine")
        with pytest.raises(WouldDeadlock):
            await row_lock(Invoice, 1, database=alias).read()
    with pytest.raises(ConfigurationError, match=r"tests\.Invoice"):
        row_lock(Late, 1, database=alias)
    await close(alias)


class Pair(RowLockFields):
    """A key of two columns."""

    pk: Any = models.CompositePrimaryKey("a", "b")
    a: Any = models.IntegerField()
    b: Any = models.IntegerField()

    class Meta:
        app_label = "tests_pair"


def test_a_key_of_several_columns() -> None:
    with pytest.raises(ConfigurationError, match="several columns"):
        row_lock(Pair, (1, 2))


class Router:
    """Reads here, writes there."""

    def __init__(self, reads: str, writes: str) -> None:
        self._reads, self._writes = reads, writes

    def db_for_read(self, model: Any, **_: Any) -> str | None:  # noqa: ANN401 - Django's
        return self._reads if model is Invoice else None

    def db_for_write(self, model: Any, **_: Any) -> str | None:  # noqa: ANN401 - Django's
        return self._writes if model is Invoice else None


async def test_databases_with_replicas(django_shop: DjangoSite, tmp_path: Path) -> None:
    """A row that was read from one is locked where it is written."""
    (tmp_path / "replica").mkdir()
    with sqlite_site(tmp_path / "replica") as replica:
        path = replica.url.partition("?rows=")[2]
        reads, writes = database(f"sqlite:///{path}"), database(django_shop.url)
        with override_settings(DATABASE_ROUTERS=[Router(reads, writes)]):
            invoice = await Invoice.objects.aget(pk=1)
            for lock in (invoice.row_lock(), row_lock(Invoice, 1)):
                async with lock.write():
                    assert django_shop.plain.state() == LOCKED["write"]
                    assert replica.plain.state() == FREE
        await close(reads)
        await close(writes)
