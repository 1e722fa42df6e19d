"""A fence needs 64 bits: what a column that has fewer says, and what we say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Integer, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiorwlock_remote import ConfigurationError, StaleFence
from aiorwlock_remote.backends.mariadb.options import options_of
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.fencing.sql import FencedTable
from aiorwlock_remote.integrations.sqlalchemy.fencing import FencedRow, fenced_get

pytestmark = pytest.mark.slow

FENCE = 1_795_637_254_421_810
CREATE = "CREATE TABLE narrow (id INTEGER PRIMARY KEY, value INTEGER, fence {})"
INSERT = "INSERT INTO narrow VALUES (1, 0, 0)"
ALTERS = {
    "postgresql": "ALTER TABLE narrow ALTER COLUMN fence TYPE bigint",
    "mariadb": "ALTER TABLE narrow MODIFY fence BIGINT NOT NULL DEFAULT 0",
    "mysql": "ALTER TABLE narrow MODIFY fence BIGINT NOT NULL DEFAULT 0",
}


@pytest.fixture(params=ALTERS)
def server(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which database, and its URL."""
    kind = request.param
    name = "database" if kind == "postgresql" else f"{kind}_empty"
    return kind, request.getfixturevalue(name)


@pytest.fixture
def connection(server: tuple[str, str]) -> Iterator[Any]:
    """A DB-API driver's."""
    kind, url = server
    if kind == "postgresql":
        with psycopg.connect(url, autocommit=True) as connected:
            yield connected
        return
    options = options_of(parse(url))
    with closing(
        pymysql.connect(
            host=options.host,
            port=options.port,
            user=options.username,
            database=options.database,
            sql_mode="STRICT_ALL_TABLES",
            autocommit=True,
        )
    ) as connected:
        yield connected


@pytest.mark.parametrize("column", ["INTEGER", "SMALLINT"])
def test_rows_of_a_driver(
    server: tuple[str, str],
    connection: Any,  # noqa: ANN401 - of either driver
    column: str,
) -> None:
    kind, _ = server
    cursor = connection.cursor()
    cursor.execute(CREATE.format(column))
    cursor.execute(INSERT)
    narrow = FencedTable("narrow", style="format")
    for ask in (
        lambda: narrow.write(cursor, 1, FENCE, {"value": 1}),
        lambda: narrow.read(cursor, 1, FENCE, ["value"]),
    ):
        with pytest.raises(ConfigurationError, match="64 bits") as caught:
            ask()
        assert ALTERS[kind] in str(caught.value)
    cursor.execute(ALTERS[kind])
    assert narrow.write(cursor, 1, FENCE, {"value": 1})
    with pytest.raises(StaleFence):
        narrow.write(cursor, 1, FENCE - 1, {"value": 2})
    with pytest.raises((psycopg.errors.NumericValueOutOfRange, pymysql.DataError)):
        narrow.write(cursor, 1, FENCE, {"value": 2**40})  # it is not the fence's


class Base(DeclarativeBase):
    """Of these tests alone."""


class Narrow(FencedRow, Base):
    """As who copies ``Mapped[int]`` has it."""

    __tablename__ = "narrow"

    id: Mapped[int] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(Integer, default=0, server_default="0")


class Altered(DeclarativeBase):
    """The same table, with another idea of it."""


class Wide(FencedRow, Altered):
    """The class knows better than its table."""

    __tablename__ = "narrow"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("row", [Narrow, Wide])
async def test_mapped_classes(server: tuple[str, str], row: type[FencedRow]) -> None:
    kind, url = server
    driver = "asyncpg" if kind == "postgresql" else "asyncmy"
    engine = create_async_engine(url.replace(f"{kind}:", f"{kind}+{driver}:"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(text("INSERT INTO narrow (id) VALUES (1)"))
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigurationError, match="64 bits") as caught:
            await fenced_get(session, row, 1, FENCE)
    assert ALTERS[kind] in str(caught.value)
    await engine.dispose()


@pytest.mark.asyncio
async def test_integers_of_sqlite_have_64_bits() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        session.add(Narrow(id=1))
        await session.flush()
        assert await fenced_get(session, Narrow, 1, FENCE)
    await engine.dispose()
