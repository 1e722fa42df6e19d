"""Mapped rows in a session: what is locked until the transaction ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import ForeignKey, String, delete, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, mapped_column, relationship

from aiorwlock_remote import BadFence, StaleFence
from aiorwlock_remote.integrations.sqlalchemy.fencing import (
    FencedRow,
    fenced,
    fenced_get,
)
from tests.fencing.resources import Base, Orm, Row

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


class Pair(FencedRow, Base):
    """Two columns make the key."""

    __tablename__ = "pairs"

    a: Mapped[int] = mapped_column(primary_key=True)
    b: Mapped[str] = mapped_column(String(20), primary_key=True)


class Note(Base):
    """Comes along with its order, by an outer join."""

    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))


class Order(FencedRow, Base):
    """Loads its notes eagerly."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    notes: Mapped[list[Note]] = relationship(lazy="joined")


@pytest_asyncio.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    orm = Orm(database.replace("postgresql://", "postgresql+asyncpg://"))
    await orm.make()
    yield orm.engine
    await orm.engine.dispose()


async def test_what_is_read_stays_until_the_commit(engine: AsyncEngine) -> None:
    """A newer writer waits for the reader's transaction, an older one is refused."""
    async with AsyncSession(engine) as reader:
        row = await fenced_get(reader, Row, 1, 5)
        assert row is not None
        newer = asyncio.create_task(change(engine, 6, 60))
        older = asyncio.create_task(change(engine, 4, 40))
        assert (await asyncio.wait([newer, older], timeout=0.3))[0] == set()
        await reader.refresh(row)
        assert (row.value, row.fence) == (0, 5)
        row.value += 1
        await reader.commit()
    await newer
    with pytest.raises(StaleFence):
        await older
    async with AsyncSession(engine) as session:
        found = await session.get(Row, 1)
        assert found is not None
        assert (found.value, found.fence) == (60, 6)


async def change(engine: AsyncEngine, fence: int, value: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        row = await fenced_get(session, Row, 1, fence)
        assert row is not None
        row.value = value


async def test_what_the_session_knew_is_read_anew(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session:
        known = await session.get(Row, 1)
        await session.rollback()
        await change(engine, 5, 50)
        assert await fenced_get(session, Row, 1, 5) is known
        assert known is not None
        assert known.value == 50


async def test_only_the_row_itself_is_locked(engine: AsyncEngine) -> None:
    """PostgreSQL would refuse to lock what an outer join may not find."""
    async with AsyncSession(engine) as session, session.begin():
        session.add(Order(id=1))
    async with AsyncSession(engine) as session:
        order = await fenced_get(session, Order, 1, 5)
        assert order is not None
        assert order.notes == []


async def test_rolled_back_is_as_if_nobody_had_come(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session:
        await fenced_get(session, Row, 1, 9)
        await session.rollback()
    await change(engine, 5, 50)


async def test_updates_and_deletes(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session, session.begin():
        changed = update(Row).where(Row.id == 1).values(value=7)
        for fence, rows in ((5, 1), (4, 0), (5, 1)):
            done = await session.execute(fenced(changed, fence))
            assert done.rowcount == rows  # type: ignore[attr-defined]
        gone = delete(Row).where(Row.id == 1)
        for fence, rows in ((4, 0), (5, 1)):
            done = await session.execute(fenced(gone, fence))
            assert done.rowcount == rows  # type: ignore[attr-defined]
        with pytest.raises(BadFence):
            fenced(gone, -1)


async def test_keys_of_two_columns_and_rows_that_are_not_there(
    engine: AsyncEngine,
) -> None:
    async with AsyncSession(engine) as session, session.begin():
        session.add(Pair(a=1, b="x"))
    async with AsyncSession(engine) as session:
        row = await fenced_get(session, Pair, (1, "x"), 5)
        assert row is not None
        assert row.fence == 5
        with pytest.raises(StaleFence, match="pairs/1/x: fence 4 is too old"):
            await fenced_get(session, Pair, (1, "x"), 4)
        assert await fenced_get(session, Pair, (1, "y"), 5) is None
        assert await fenced_get(session, Row, 2, 5) is None
