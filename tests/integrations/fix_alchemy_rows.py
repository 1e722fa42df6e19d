"""Row locks by an engine of SQLAlchemy, on each database it is tested with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiorwlock_remote.integrations.sqlalchemy.row_lock import RowLeaseColumns, row_lock
from aiorwlock_remote.recipes import RowLock
from tests.recipes.row_sites import LockOf, RowSite


class Base(DeclarativeBase):
    """Of the models here."""


class Invoice(RowLeaseColumns, Base):
    """The user's."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)


class AlchemySite(RowSite):
    """By ``row_lock(engine, Invoice, …)``."""

    async def open(self) -> AsyncIterator[LockOf]:
        engine = create_async_engine(self.url)
        try:
            yield partial(lock_of, engine, self.lease)
        finally:
            await engine.dispose()


def lock_of(
    engine: AsyncEngine, lease: float | None, key: int, table: str = "invoices"
) -> RowLock:
    found = Invoice if table == "invoices" else other_table(table)
    return row_lock(engine, found, key, lease=lease)


def other_table(name: str) -> Table:
    """As the program believes it to be."""
    return Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("lock_mark", String(9)),
        Column("read_lock_count", Integer),
        Column("lock_reason", String(200)),
        Column("lock_grants", String(4000)),
    )


@asynccontextmanager
async def engine_of(site: AlchemySite) -> AsyncIterator[AsyncEngine]:
    """At it; its connections are closed afterwards."""
    engine = create_async_engine(site.url)
    try:
        yield engine
    finally:
        await engine.dispose()
