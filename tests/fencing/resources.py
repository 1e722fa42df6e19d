"""One cell each, kept by every kind of fenced resource: an integer that starts as 0."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
import redis.asyncio
from anyio import to_thread
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiorwlock_remote.fencing.cassandra import accepted, fenced_update, fenced_values
from aiorwlock_remote.fencing.files import FencedFile
from aiorwlock_remote.fencing.redis import fenced_get, fenced_set
from aiorwlock_remote.fencing.sql import Cursor, FencedTable
from aiorwlock_remote.integrations.sqlalchemy.fencing import FencedRow
from aiorwlock_remote.integrations.sqlalchemy.fencing import fenced_get as get
from tests.servers.fix_cassandra import Keyspace
from tests.servers.mariadb import connected, run
from tests.servers.redis import RedisServer

CREATE = (
    "CREATE TABLE cells (id INTEGER PRIMARY KEY, value INTEGER NOT NULL,"
    " fence BIGINT NOT NULL DEFAULT 0)"
)
INSERT = "INSERT INTO cells (id, value) VALUES (1, 0)"


class Cell(Protocol):
    """What a test does with it; each call is a transaction of its own."""

    async def read(self, fence: int) -> int:
        """Under a grant."""

    async def write(self, fence: int, value: int) -> None:
        """Under a grant."""


class Connection(Protocol):
    """What DB-API calls a connection, as far as it is needed here."""

    def cursor(self) -> Cursor: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


Made = AbstractAsyncContextManager[Cell]
Maker = Callable[[pytest.FixtureRequest], Made]
KINDS: dict[str, Maker] = {}


def kind(name: str) -> Callable[[Maker], Maker]:
    """Put it on the list."""

    def listed(make: Maker) -> Maker:
        KINDS[name] = make
        return make

    return listed


class Table:
    """Through a DB-API driver, a connection for each call at a time."""

    def __init__(self, connect: Callable[[], Connection], cells: FencedTable) -> None:
        self._connect = connect
        self._cells = cells
        self._idle: list[Connection] = []

    async def read(self, fence: int) -> int:
        def read(cursor: Cursor) -> int:
            value: int = self._cells.read(cursor, 1, fence, ["value"])[0]
            return value

        return await to_thread.run_sync(self._run, read)

    async def write(self, fence: int, value: int) -> None:
        def write(cursor: Cursor) -> int:
            assert self._cells.write(cursor, 1, fence, {"value": value})
            return 0

        await to_thread.run_sync(self._run, write)

    def _run(self, work: Callable[[Cursor], int]) -> int:
        db = self._idle.pop() if self._idle else self._connect()
        try:
            done = work(db.cursor())
            db.commit()
        except BaseException:
            db.rollback()
            raise
        finally:
            self._idle.append(db)
        return done

    def close(self) -> None:
        for db in self._idle:
            db.close()


@kind("sqlite")
@asynccontextmanager
async def sqlite(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    path: Path = request.getfixturevalue("tmp_path") / "cells.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(CREATE)
        db.execute(INSERT)
        db.commit()
    cells = FencedTable("cells")
    opened = partial(sqlite3.connect, path, timeout=30, check_same_thread=False)
    with closing(Table(opened, cells)) as cell:
        yield cell


@kind("postgresql")
@asynccontextmanager
async def postgresql(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    url: str = request.getfixturevalue("database")
    with psycopg.connect(url) as db:
        db.execute(CREATE)
        db.execute(INSERT)
    cells = FencedTable("cells", style="pyformat")
    with closing(Table(partial(psycopg.connect, url), cells)) as cell:
        yield cell


@asynccontextmanager
async def by_pymysql(url: str) -> AsyncIterator[Cell]:
    run(url, CREATE, INSERT)
    cells = FencedTable("cells", style="format")
    with closing(Table(partial(connected, url, autocommit=False), cells)) as cell:
        yield cell


@kind("mariadb")
def mariadb(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Cell]:
    return by_pymysql(request.getfixturevalue("mariadb_empty"))


@kind("mysql")
def mysql(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Cell]:
    return by_pymysql(request.getfixturevalue("mysql_empty"))


class Base(DeclarativeBase):
    """Ours."""


class Row(FencedRow, Base):
    """The cell as a mapped class."""

    __tablename__ = "cells"

    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]


class Orm:
    """Through SQLAlchemy's ORM."""

    def __init__(self, url: str) -> None:
        self.engine = create_async_engine(url)

    async def make(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(self.engine) as session:
            session.add(Row(id=1, value=0))
            await session.commit()

    async def read(self, fence: int) -> int:
        async with AsyncSession(self.engine) as session, session.begin():
            row = await get(session, Row, 1, fence)
            assert row is not None
            return row.value

    async def write(self, fence: int, value: int) -> None:
        async with AsyncSession(self.engine) as session, session.begin():
            row = await get(session, Row, 1, fence)
            assert row is not None
            row.value = value


@kind("sqlalchemy-sqlite")
@asynccontextmanager
async def orm_sqlite(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    path: Path = request.getfixturevalue("tmp_path") / "cells.db"
    cell = Orm(f"sqlite+aiosqlite:///{path}?timeout=30")
    await cell.make()
    yield cell
    await cell.engine.dispose()


@kind("sqlalchemy-postgresql")
@asynccontextmanager
async def orm_postgresql(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    url: str = request.getfixturevalue("database")
    cell = Orm(url.replace("postgresql://", "postgresql+asyncpg://"))
    await cell.make()
    yield cell
    await cell.engine.dispose()


@asynccontextmanager
async def by_asyncmy(url: str) -> AsyncIterator[Cell]:
    cell = Orm(mariadb_url(url))
    await cell.make()
    yield cell
    await cell.engine.dispose()


@kind("sqlalchemy-mariadb")
def orm_mariadb(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Cell]:
    return by_asyncmy(request.getfixturevalue("mariadb_empty"))


@kind("sqlalchemy-mysql")
def orm_mysql(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Cell]:
    return by_asyncmy(request.getfixturevalue("mysql_empty"))


def mariadb_url(url: str) -> str:
    """As SQLAlchemy has it."""
    return f"mysql+asyncmy://{url.partition('://')[2]}"


class Key:
    """In Redis."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def read(self, fence: int) -> int:
        return int(await fenced_get(self._client, "cell", fence) or 0)

    async def write(self, fence: int, value: int) -> None:
        await fenced_set(self._client, "cell", str(value), fence)


@kind("redis")
@asynccontextmanager
async def redis_key(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    server: RedisServer = request.getfixturevalue("fresh_redis")
    async with redis.asyncio.Redis.from_url(server.url) as client:
        yield Key(client)


class Lines:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, fence: int) -> int:
        data = await to_thread.run_sync(FencedFile(self._path).read, fence)
        return int(data or b"0")

    async def write(self, fence: int, value: int) -> None:
        data = str(value).encode()
        await to_thread.run_sync(FencedFile(self._path).write, fence, data)


@kind("file")
@asynccontextmanager
async def file(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    folder: Path = request.getfixturevalue("tmp_path")
    yield Lines(folder / "cell")


class Transactions:
    """A row of Cassandra."""

    def __init__(self, keyspace: Keyspace) -> None:
        session = keyspace.visit.session
        self._session = session
        table = f"{keyspace.name}.cells"
        session.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, value int, fence bigint)"
        )
        session.execute(
            f"INSERT INTO {table} (id, value, fence) VALUES (1, 0, 0) IF NOT EXISTS"  # noqa: S608 - ours
        )
        self._write = session.prepare(fenced_update(table, ["value"], ["id"]))
        self._raise = session.prepare(fenced_update(table, [], ["id"]))
        self._look = session.prepare(f"SELECT value FROM {table} WHERE id = ?")  # noqa: S608 - ours

    async def read(self, fence: int) -> int:
        def read() -> int:
            done = self._session.execute(self._raise, fenced_values([], [1], fence))
            assert accepted(done, "cells/1", fence)
            value: int = self._session.execute(self._look, (1,)).one()[0]
            return value

        return await to_thread.run_sync(read)

    async def write(self, fence: int, value: int) -> None:
        def write() -> None:
            done = self._session.execute(
                self._write, fenced_values([value], [1], fence)
            )
            assert accepted(done, "cells/1", fence)

        await to_thread.run_sync(write)


@kind("cassandra")
@asynccontextmanager
async def cassandra(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    yield Transactions(request.getfixturevalue("keyspace"))
