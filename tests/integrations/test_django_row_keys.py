"""Row locks by models of Django: which table, which key, which database."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, models
from django.test import override_settings

from aiorwlock_remote import ConfigurationError, WouldDeadlock
from aiorwlock_remote.integrations.django.row_lock import RowLockFields, row_lock
from tests.integrations.fix_django_rows import DjangoSite, Invoice
from tests.recipes.fix_rows import sqlite_site
from tests.recipes.occupied_django import close, database
from tests.recipes.row_sites import FREE, LOCKED

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "Django knows no other loop"),
]


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
