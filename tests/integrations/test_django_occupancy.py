"""Objects occupied in a model of Django: names, transactions, what is missing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, models, router, transaction

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    Unsupported,
)
from aiorwlock_remote.integrations.django.occupancy import OccupancyRecord, occupancy
from tests.recipes.occupied_django import Book, Novel, close, database
from tests.recipes.occupied_places import BOOK
from tests.recipes.occupied_tables import ModelPlace
from tests.servers.process import IP, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "these libraries know no other loop"),
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


class KeyedRecord(OccupancyRecord):
    """As users have it: with Django's own key."""

    class Meta(OccupancyRecord.Meta):
        app_label = "tests"


class Proxy(Novel):
    """Another face of the same row."""

    class Meta:
        app_label = "tests"
        proxy = True


class Bare(models.Model):
    """No record."""

    object: Any = models.CharField(max_length=9)

    class Meta:
        app_label = "tests"


@pytest.fixture
def place(tmp_path: Path) -> ModelPlace:
    place = ModelPlace(f"sqlite:///{tmp_path}/db.sqlite3")
    place.make()
    return place


async def test_a_row_is_named_by_its_model_and_key(place: ModelPlace) -> None:
    async with place.open() as books:
        book = Book(pk=7)
        novel = Novel(pk=7, book_ptr=book)
        async with books.occupy(book) as occupied:
            assert occupied.name == "tests.book:7"
            for same in (novel, Proxy(pk=7, book_ptr=book), ("tests.book", 7)):
                assert await books.try_occupy(same) is None
        with pytest.raises(ConfigurationError, match="not saved"):
            _ = books.occupy(Book())
        for thing in (Book, 7, None):
            with pytest.raises(ConfigurationError):
                _ = books.occupy(thing)


async def test_a_model_as_users_have_it(tmp_path: Path) -> None:
    alias = database(f"sqlite:///{tmp_path}/db.sqlite3")

    def make() -> None:
        with connections[alias].schema_editor() as editor:
            editor.create_model(KeyedRecord)

    await sync_to_async(make)()
    records = occupancy(KeyedRecord, database=alias)
    async with records.occupy(BOOK, who="alice"):
        row = await KeyedRecord.objects.using(alias).aget()
        assert (row.object, row.status, row.pk) == ("book:42", "using", 1)
        assert str(row).startswith("book:42 using alice,")
        with pytest.raises(LockBusy, match="alice"):
            await records.occupy(BOOK)
    assert not await KeyedRecord.objects.using(alias).aexists()
    await close(alias)


class Elsewhere:
    """A router: records are written to one database, and read from another."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_write(self, model: type[models.Model], **_: object) -> str | None:
        return self.alias if model is KeyedRecord else None

    def db_for_read(self, model: type[models.Model], **_: object) -> str | None:
        return "replica" if model is KeyedRecord else None


async def test_the_routers_are_asked_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time; records are read where they are written."""
    records = occupancy(KeyedRecord)
    for name in ("one", "other"):
        alias = database(f"sqlite:///{tmp_path}/{name}.sqlite3")
        monkeypatch.setattr(router, "routers", [Elsewhere(alias)])

        def make(alias: str = alias) -> None:
            with connections[alias].schema_editor() as editor:
                editor.create_model(KeyedRecord)

        await sync_to_async(make)()
        async with records.occupy(BOOK, who="alice") as occupied:
            assert (
                await KeyedRecord.objects.using(alias).filter(status="using").aexists()
            )
            assert await records.try_occupy(BOOK) is None
            await occupied.extend()
        assert not await KeyedRecord.objects.using(alias).aexists()
        await close(alias)


async def test_inside_of_a_transaction_nobody_would_see_it(place: ModelPlace) -> None:
    async with place.open() as books:

        async def occupy() -> None:
            async with books.occupy(BOOK):
                pass

        def view() -> None:
            with transaction.atomic(using=place.url):
                async_to_sync(occupy)()

        with pytest.raises(ConfigurationError, match=r"inside of atomic\(\)"):
            await sync_to_async(view)()
        assert place.records() == ([], [])
        await sync_to_async(async_to_sync(occupy))()


async def test_where_nothing_is_committed_nobody_would_see_it(
    place: ModelPlace,
) -> None:
    """As with ``"AUTOCOMMIT": False`` in DATABASES."""
    async with place.open() as books:
        commits = sync_to_async(partial(transaction.set_autocommit, using=place.url))
        await commits(False)
        with pytest.raises(ConfigurationError, match="autocommit"):
            await books.occupy(BOOK)
        await commits(True)
        async with books.occupy(BOOK):
            assert await books.try_occupy(BOOK) is None


async def test_missing_tables_are_reported(tmp_path: Path) -> None:
    alias = database(f"sqlite:///{tmp_path}/empty.sqlite3")
    with pytest.raises(Unsupported, match=r"manage\.py migrate tests"):
        await occupancy(KeyedRecord, database=alias).occupy(BOOK)
    await close(alias)
    with pytest.raises(ConfigurationError, match="no field who"):
        occupancy(Bare)
    with pytest.raises(ConfigurationError, match="nowhere"):
        await occupancy(KeyedRecord, database="nowhere").occupy(BOOK)
    with pytest.raises(ConfigurationError):
        occupancy(KeyedRecord, using_age=0)


async def test_a_server_that_is_not_there() -> None:
    alias = database(f"postgresql://postgres@{IP}:{free_port()}/postgres")
    with pytest.raises(BackendUnavailable):
        await occupancy(KeyedRecord, database=alias).occupy(BOOK)
    await close(alias)
