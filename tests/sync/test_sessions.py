"""A lock that is released before a session of SQLAlchemy commits its changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, delete, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from aiorwlock_remote.sync import Locks, connect, ignore_transactions


class Base(DeclarativeBase):
    """Of one table."""


class Order(Base):
    """An order, and how much of it is paid."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[int]


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Order(id=7, paid=0))
    yield engine
    engine.dispose()


@pytest.fixture
def locks() -> Iterator[Locks]:
    with connect("memory://") as locks:
        # From here on the library listens.
        with locks.mutex("order", 1):
            pass
        yield locks


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("released_before_commit ")
    ]


def changes(session: Session) -> None:
    order = session.get_one(Order, 7)
    order.paid += 1


def flushes(session: Session) -> None:
    changes(session)
    session.flush()


CHANGES: dict[str, Callable[[Session], object]] = {
    "changed": changes,
    "flushed": flushes,
    "added": lambda session: session.add(Order(id=8, paid=0)),
    "deleted": lambda session: session.delete(session.get_one(Order, 7)),
    "update": lambda session: session.execute(update(Order).values(paid=1)),
    "insert": lambda session: session.execute(insert(Order).values(id=8, paid=1)),
    "delete": lambda session: session.execute(delete(Order)),
    "text": lambda session: session.execute(text(" Update orders SET paid = 1")),
}


def reads(session: Session) -> None:
    session.execute(text("SELECT 'update'"))
    session.scalars(select(Order)).all()


def nests(session: Session) -> None:
    with session.begin_nested():
        flushes(session)


@pytest.mark.parametrize("change", [*CHANGES.values(), nests], ids=[*CHANGES, "nested"])
def test_uncommitted_changes_at_a_release_are_reported(
    change: Callable[[Session], object],
    engine: Engine,
    locks: Locks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with Session(engine) as session:
        with locks.mutex("order", 7):
            change(session)
        (said,) = events(caplog)
        assert "order/7" in said
        assert "Session" in said
        session.commit()


@pytest.mark.parametrize("change", [*CHANGES.values(), nests], ids=[*CHANGES, "nested"])
def test_the_right_order_is_quiet(
    change: Callable[[Session], object],
    engine: Engine,
    locks: Locks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also with a session that goes on to read, or has been rolled back."""
    caplog.set_level(logging.WARNING)
    with Session(engine) as session:
        with locks.mutex("order", 7):
            change(session)
            session.rollback()
        with locks.mutex("order", 7):
            change(session)
            session.commit()
            reads(session)
        with locks.mutex("order", 7), Session(engine) as inner, inner.begin():
            reads(inner)
    assert events(caplog) == []


def test_clean_sessions_are_not_reported(
    engine: Engine, locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that reads, an error, and what was said to be unrelated."""
    caplog.set_level(logging.WARNING)
    with Session(engine) as session:
        with locks.mutex("order", 7):
            reads(session)
        with pytest.raises(ZeroDivisionError), locks.mutex("order", 7):
            flushes(session)
            raise ZeroDivisionError
        with ignore_transactions(), locks.mutex("order", 7):
            flushes(session)
    assert events(caplog) == []
