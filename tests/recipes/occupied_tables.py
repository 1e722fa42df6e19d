"""Objects occupied in a table, by SQLAlchemy and by Django."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
from sqlalchemy import MetaData, create_mock_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateTable

from aiorwlock_remote.integrations.sqlalchemy import occupancy as for_sqlalchemy
from aiorwlock_remote.recipes import Occupancy
from tests.recipes.occupied_places import NAME
from tests.servers.mariadb import connected

TABLE = for_sqlalchemy.occupancy_table(MetaData())
STATUSES = ("pending", "using")
DRIVERS = {
    "sqlite": "aiosqlite",
    "postgresql": "asyncpg",
    "mariadb": "asyncmy",
    "mysql": "aiomysql",
}


class TablePlace:
    """``url``: ``sqlite:///path``, ``postgresql://…`` or ``mysql://…``."""

    library = "sqlalchemy"

    def __init__(self, url: str) -> None:
        self.spec = f"{self.library} {url}"
        self.url = url

    def make(self) -> None:
        dialect = self.url.partition(":")[0]
        self.run("DROP TABLE IF EXISTS occupancies")
        engine: Any = create_mock_engine(f"{dialect}://", lambda *_a, **_k: None)
        self.run(str(CreateTable(TABLE).compile(engine)))

    @asynccontextmanager
    async def open(self, **ages: float | None) -> AsyncIterator[Occupancy]:
        scheme, _, rest = self.url.partition(":")
        driver = DRIVERS[scheme]
        engine = create_async_engine(f"{scheme}+{driver}:{rest}")
        try:
            yield for_sqlalchemy.occupancy(engine, TABLE, **ages)  # type: ignore[arg-type]
        finally:
            await engine.dispose()

    def records(self) -> tuple[list[str], list[str]]:
        rows = self.run(
            f"SELECT status, who FROM occupancies WHERE object = '{NAME}' ORDER BY who"  # noqa: S608
        )
        both = [[who for found, who in rows if found == s] for s in STATUSES]
        return both[0], both[1]

    def plant(self, status: str, who: str) -> None:
        columns = "(object, status, who)"
        values = f"('{NAME}', '{status}', '{who}')"
        self.run(f"INSERT INTO occupancies {columns} VALUES {values}")  # noqa: S608

    def erase(self) -> None:
        self.run("DELETE FROM occupancies")

    def run(self, statement: str) -> list[Any]:
        """As another program would."""
        scheme, _, path = self.url.partition("://")
        if scheme == "sqlite":
            with closing(sqlite3.connect(path[1:], timeout=30)) as db, db:
                return db.execute(statement).fetchall()
        if scheme in {"mariadb", "mysql"}:
            with closing(connected(self.url)) as mariadb, mariadb.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []


class ModelPlace(TablePlace):
    """The same table, by Django."""

    library = "django"

    @asynccontextmanager
    async def open(self, **ages: float | None) -> AsyncIterator[Occupancy]:
        from tests.recipes import occupied_django  # noqa: PLC0415 - makes settings

        alias = occupied_django.database(self.url)
        try:
            yield occupied_django.occupancy(alias, **ages)
        finally:
            await occupied_django.close(alias)


KINDS: dict[str, type[TablePlace]] = {"sqlalchemy": TablePlace, "django": ModelPlace}
