"""A lock around a transaction of an ``AsyncSession``, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from aiorwlock_remote import ConfigurationError, LockLost, Locks, connect
from aiorwlock_remote.integrations.sqlalchemy.session import locked_transaction
from tests.integrations.bank import Bank

pytestmark = pytest.mark.asyncio

accounts = Table(
    "accounts",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("total", Integer),
)


@pytest_asyncio.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    """One account, with nothing in it."""
    engine = create_async_engine(database.replace("postgresql:", "postgresql+asyncpg:"))
    async with engine.begin() as connection:
        await connection.run_sync(accounts.metadata.drop_all)
        await connection.run_sync(accounts.metadata.create_all)
        await connection.execute(insert(accounts).values(id=7, total=0))
    yield engine
    async with engine.begin() as connection:
        await connection.run_sync(accounts.metadata.drop_all)
    await engine.dispose()


@pytest_asyncio.fixture
async def locks() -> AsyncIterator[Locks]:
    async with connect("memory://") as locks:
        yield locks


class Waiting(AsyncSession):
    """A session whose first commit waits for a rival, as the bank's does."""

    bank: Bank

    async def commit(self) -> None:
        await self.bank.at_commit()
        await super().commit()


async def pay(session: AsyncSession) -> None:
    total = await session.scalar(select(accounts.c.total))
    assert total is not None
    await session.execute(update(accounts).values(total=total + 1))


async def total(engine: AsyncEngine) -> int | None:
    async with engine.connect() as connection:
        found: int | None = await connection.scalar(select(accounts.c.total))
    return found


@pytest.mark.parametrize("locked", [True, False])
async def test_no_update_is_lost(
    engine: AsyncEngine,
    locks: Locks,
    locked: bool,
) -> None:
    """Unlike that of a transaction around the lock, the control."""
    bank = Bank()
    bank.locks = locks

    async def request() -> int:
        async with Waiting(engine) as session:
            session.bank = bank
            mutex = locks.mutex("account", 7)
            if locked:
                async with locked_transaction(session, mutex):
                    await pay(session)
                    bank.reads += 1
            else:
                async with mutex:
                    seen = await session.scalar(select(accounts.c.total))
                    bank.reads += 1
                await bank.at_commit()
                await session.execute(update(accounts).values(total=(seen or 0) + 1))
                await session.commit()
        bank.total += 1
        return 200

    await bank.two_pay(request)
    assert await total(engine) == (2 if locked else 1)


async def test_a_session_that_has_read_before_is_refused(
    engine: AsyncEngine, locks: Locks
) -> None:
    async with AsyncSession(engine) as session:
        mutex = locks.mutex("account", 7)
        await session.scalar(select(accounts.c.total))
        with pytest.raises(ConfigurationError, match="began before the lock"):
            async with locked_transaction(session, mutex):
                pytest.fail("entered")
        await session.commit()
        async with locked_transaction(session, mutex.acquire(timeout=5)) as held:
            assert held.resource == "account/7"
            await pay(session)
    assert await total(engine) == 1


async def test_an_error_of_the_body_rolls_back(
    engine: AsyncEngine, locks: Locks
) -> None:
    async with AsyncSession(engine) as session:
        with pytest.raises(ZeroDivisionError):
            async with locked_transaction(session, locks.mutex("account", 7)):
                await pay(session)
                raise ZeroDivisionError
        assert not session.in_transaction()
        assert not await locks.mutex("account", 7).locked()
    assert await total(engine) == 0


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_loss_rolls_back(
    engine: AsyncEngine,
    locks: Locks,
    noticed: bool,
) -> None:
    """The loss cancels the body; or the body goes on, and nothing is committed."""
    async with AsyncSession(engine) as session:
        with pytest.raises(LockLost):
            async with locked_transaction(session, locks.mutex("account", 7)) as held:
                await pay(session)
                async for seen in locks.list():
                    await locks.force_release(seen, reason="test")
                extending = asyncio.ensure_future(held.extend())
                if noticed:
                    await anyio.sleep_forever()
                await asyncio.wait({extending})
        assert isinstance(await asyncio.gather(extending, return_exceptions=True), list)
        assert not session.in_transaction()
        await pay(session)  # its connection is good
        await session.rollback()
    assert await total(engine) == 0
