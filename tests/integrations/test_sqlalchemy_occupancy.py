"""Objects occupied in a table of SQLAlchemy: names, costs, engines that fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, MetaData, String, Table, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    Unsupported,
)
from aiorwlock_remote.integrations.sqlalchemy.occupancy import (
    TableOccupancyStore,
    occupancy,
    occupancy_table,
)
from tests.recipes.fix_occupied import MakePlace
from tests.recipes.occupied_places import BOOK
from tests.recipes.occupied_tables import DRIVERS
from tests.servers.process import IP, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "these libraries know no other loop"),
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


class Base(DeclarativeBase):
    """Of the models here."""


class Item(Base):
    """The user's."""

    __tablename__ = "items"

    id: Mapped[int] = mapped_column(primary_key=True)


class Book(Item):
    """A part of it in a table of its own."""

    __tablename__ = "books"

    id: Mapped[int] = mapped_column(ForeignKey("items.id"), primary_key=True)


class Copy(Base):
    """With a key of two columns."""

    __tablename__ = "copies"

    book: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(String(9), primary_key=True)


class Occupation(Base):
    """A mapped class in place of a table."""

    __table__ = occupancy_table(Base.metadata)


@asynccontextmanager
async def sqlite(folder: Path, **options: Any) -> AsyncIterator[AsyncEngine]:  # noqa: ANN401
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/db", **options)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    await engine.dispose()


async def test_a_row_is_named_by_its_table_and_key(tmp_path: Path) -> None:
    async with sqlite(tmp_path) as engine, AsyncSession(engine) as session:
        books = occupancy(engine, Occupation)
        book, copy = Book(id=7), Copy(book=7, number="a")
        with pytest.raises(ConfigurationError, match="Book has no primary key yet"):
            _ = books.occupy(book)
        session.add_all([book, copy])
        await session.commit()
        session.expire_all()
        async with books.occupy(book) as one, books.occupy(copy) as other:
            assert (one.name, other.name) == ("items:7", "copies:7,a")
            assert await books.try_occupy(("items", 7)) is None
        for thing in (Book, 7, None, "book"):
            with pytest.raises(ConfigurationError):
                _ = books.occupy(thing)


async def test_a_table_of_nothing() -> None:
    bad: Any
    for bad in (None, "occupancies", Base):
        with pytest.raises(ConfigurationError):
            occupancy_table(bad)
    for bad in (None, "", b"x"):
        with pytest.raises(ConfigurationError):
            occupancy_table(MetaData(), bad)


async def test_the_statements_of_an_occupation(tmp_path: Path) -> None:
    """Five statements, none of them in a transaction of several."""
    async with sqlite(tmp_path) as engine:
        said: list[str] = []

        @event.listens_for(engine.sync_engine, "before_cursor_execute")
        def hear(*args: Any) -> None:  # noqa: ANN401
            said.append(args[2].split()[0])

        @event.listens_for(engine.sync_engine, "begin")
        def begin(_: object) -> None:
            said.append("BEGIN")

        async with occupancy(engine, Occupation).occupy(("book", 1)):
            assert [word for word in said if word != "BEGIN"] == [
                *("INSERT", "SELECT", "SELECT", "UPDATE")
            ]
        assert said[-1] == "DELETE"


@pytest.mark.slow
async def test_a_session_that_holds_the_only_connection(tmp_path: Path) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}
    async with sqlite(tmp_path, **options) as engine:
        books = occupancy(engine, Occupation)
        async with engine.connect():
            with pytest.raises(BackendUnavailable, match="pool") as refused:
                await books.occupy(("book", 1))
        assert refused.value.nothing_done
        async with books.occupy(("book", 1)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
async def test_whatever_the_engines_isolation(
    occupied_table: MakePlace, level: str
) -> None:
    place = occupied_table("sqlalchemy", "postgresql")
    url = place.url.replace("postgresql:", "postgresql+asyncpg:")
    engine = create_async_engine(url, isolation_level=level)
    books = occupancy(engine, Occupation)
    async with books.occupy(("book", 1), who="joe"):
        with pytest.raises(LockBusy):
            await books.occupy(("book", 1))
    await engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb", "mysql"])
async def test_a_table_that_is_not_there(kind: str, occupied_table: MakePlace) -> None:
    place = occupied_table("sqlalchemy", kind)
    place.run("DROP TABLE occupancies")
    url = place.url
    engine = create_async_engine(url.replace(":", f"+{DRIVERS[kind]}:", 1))
    with pytest.raises(Unsupported, match="CREATE TABLE occupancies") as missing:
        await occupancy(engine, Occupation).occupy(("book", 1))
    assert missing.value.__cause__ is not None
    async with engine.begin() as connection:
        await connection.exec_driver_sql(missing.value.hint)
    async with occupancy(engine, Occupation).occupy(("book", 1)):
        pass
    await engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["sqlalchemy", "django"])
async def test_connections_that_are_cut(
    occupied_table: MakePlace, library: str
) -> None:
    """As after a restart: the holder leaves, a newcomer fails, then occupies."""
    place = occupied_table(library, "postgresql")
    async with place.open() as books:
        async with books.occupy(BOOK):
            place.run(CUT)
        assert place.records() == ([], [])
        place.run(CUT)
        with pytest.raises(BackendUnavailable):
            await books.occupy(BOOK)
        async with books.occupy(BOOK):
            pass
        assert place.records() == ([], [])


CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.mark.slow
async def test_a_server_that_is_not_there() -> None:
    url = f"postgresql+asyncpg://postgres:secret@{IP}:{free_port()}/postgres"
    engine = create_async_engine(url)
    with pytest.raises(BackendUnavailable) as away:
        await occupancy(engine, Occupation).occupy(("book", 1))
    assert "secret" not in str(away.value)
    await engine.dispose()


def test_unusable_engines_and_tables_are_refused(tmp_path: Path) -> None:
    sync = create_engine(f"sqlite:///{tmp_path}/db")
    other = create_async_engine("oracle+oracledb_async://user@host/service")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/db")
    for wrong in (sync, other, None):
        with pytest.raises(ConfigurationError, match="AsyncEngine"):
            occupancy(wrong, Occupation)  # type: ignore[arg-type]
    for table in (None, "occupancies", Base):
        with pytest.raises(ConfigurationError, match="no table"):
            occupancy(engine, table)  # type: ignore[arg-type]
    columns = [Column(name, String(9)) for name in ("object", "who", "status")]
    without = Table("bare", MetaData(), *columns)
    with pytest.raises(ConfigurationError, match="ALTER TABLE bare ADD COLUMN since"):
        occupancy(engine, without)
    with pytest.raises(ConfigurationError):
        occupancy(engine, Occupation, pending_age=0)
    assert isinstance(occupancy(engine, Occupation).store, TableOccupancyStore)


def test_not_where_all_connections_are_one() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ConfigurationError, match="connections are one"):
        occupancy(engine, Occupation)
