"""Mapped rows in a session: what is locked until the transaction ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import ForeignKey, ForeignKeyConstraint, String, delete, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapped, mapped_column, relationship

from aiorwlock_remote import BadFence, ConfigurationError, StaleFence
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


class Document(FencedRow, Base):
    """Has a table for what all kinds of it have."""

    __tablename__ = "documents"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012 - as all have it


class Letter(Document):
    """And one for what only it has."""

    __tablename__ = "letters"

    number: Mapped[int] = mapped_column(ForeignKey("documents.id"), primary_key=True)
    pages: Mapped[int]
    __mapper_args__ = {"polymorphic_identity": "letter"}  # noqa: RUF012


class Page(Base):
    """Not fenced, but for some."""

    __tablename__ = "pages"

    id: Mapped[int] = mapped_column(primary_key=True)


class SignedPage(FencedRow, Page):
    """The fence is in the table of its own."""

    __tablename__ = "signed_pages"

    page: Mapped[int] = mapped_column(ForeignKey("pages.id"), primary_key=True)


class Pairing(Pair):
    """Its fence is where its key is: in the parent's."""

    __tablename__ = "pairings"

    b: Mapped[str] = mapped_column(String(20), primary_key=True)
    a: Mapped[int] = mapped_column(primary_key=True)
    __table_args__ = (ForeignKeyConstraint(["a", "b"], ["pairs.a", "pairs.b"]),)


class Couple(Base):
    """Two columns make the key, and there is no fence."""

    __tablename__ = "couples"

    a: Mapped[int] = mapped_column(primary_key=True)
    b: Mapped[int] = mapped_column(primary_key=True)


class FencedCouple(FencedRow, Couple):
    """The same columns in another order."""

    __tablename__ = "fenced_couples"

    b: Mapped[int] = mapped_column(primary_key=True)
    a: Mapped[int] = mapped_column(primary_key=True)
    __table_args__ = (ForeignKeyConstraint(["a", "b"], ["couples.a", "couples.b"]),)


@pytest_asyncio.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    orm = Orm(database.replace("postgresql://", "postgresql+asyncpg://"))
    await orm.make()
    yield orm.engine
    await orm.engine.dispose()


async def test_a_read_row_stays_until_the_commit(engine: AsyncEngine) -> None:
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


async def test_a_row_known_to_the_session_is_read_anew(engine: AsyncEngine) -> None:
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


@pytest.mark.parametrize("kind", [Letter, SignedPage], ids=["parent", "child"])
async def test_rows_in_two_tables(engine: AsyncEngine, kind: type[Letter]) -> None:
    """The fence is in one of them: in that of the parent, or of the child."""
    more = {"pages": 3} if kind is Letter else {}
    async with AsyncSession(engine) as session, session.begin():
        session.add_all([kind(id=1, **more), kind(id=2, **more)])
    async with AsyncSession(engine) as session:
        found = await fenced_get(session, kind, 1, 5)
        assert found is not None
        assert found.fence == 5
        await session.commit()
        with pytest.raises(StaleFence) as caught:
            await fenced_get(session, kind, 1, 4)
        assert caught.value.highest == 5
        await session.rollback()
        other = await session.get(kind, 2)
        assert other is not None
        assert other.fence == 0
        assert await fenced_get(session, kind, 3, 5) is None


async def test_a_key_of_two_columns_in_two_tables(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session:
        session.add(Pairing(a=1, b="x"))
        await session.flush()
        found = await fenced_get(session, Pairing, (1, "x"), 5)
        assert found is not None
        assert found.fence == 5
        with pytest.raises(ConfigurationError, match="in different tables"):
            await fenced_get(session, FencedCouple, (1, 2), 5)


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
