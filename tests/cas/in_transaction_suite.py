"""What every store keeps whose grants can end with the caller's own transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockTimeout,
    Unsupported,
    WouldDeadlock,
    connect,
)
from aiorwlock_remote.locks.lock import TRANSACTION_LEASE
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.servers.proxy import Proxy

Connection = Any  # the driver's
Value = Any
BOOK = "INSERT INTO booked VALUES (1)"
BOOKED = "SELECT count(*) FROM booked"


class User(ABC):
    """A program with a connection of its own, and a table ``booked`` (n integer)."""

    url: str
    engine: str
    """The URL for SQLAlchemy."""
    under_way: tuple[str, ...]
    """What our own programs do to the rows of ("order", 1) without changing them."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of the driver's, autocommit where nothing has begun."""

    @abstractmethod
    async def begin(self, connection: Connection, *, frozen: bool = False) -> None:
        """A transaction. ``frozen``: what it saw first is what it goes on seeing."""

    @abstractmethod
    async def ask(self, connection: Connection, statement: str) -> Value:
        """The first value it tells, or None."""

    def port(self) -> int:
        return int(self.url.rpartition(":")[2].partition("/")[0])

    @asynccontextmanager
    async def transaction(
        self, connection: Connection, *, frozen: bool = False
    ) -> AsyncIterator[None]:
        await self.begin(connection, frozen=frozen)
        try:
            yield
        except BaseException:
            await self.ask(connection, "ROLLBACK")
            raise
        await self.ask(connection, "COMMIT")

    async def free(self, seconds: float = 30) -> int:
        """Get the lock, as another process would; what has been booked by then."""
        async with (
            connect(self.url) as others,
            others.mutex("order", 1).acquire(timeout=seconds),
            self.opened() as connection,
        ):
            return int(await self.ask(connection, BOOKED))

    async def waited_for(self) -> bool:
        async with connect(self.url) as locks:
            return bool((await locks.mutex("order", 1).info()).queue)


class JoinSuite:
    """Of one store; the fixture ``user`` comes from the subclass's module."""

    async def test_the_next_one_sees_what_was_committed(self, user: User) -> None:
        booked: list[int] = []

        async def follow() -> None:
            booked.append(await user.free())

        async with connect(user.url) as locks, user.opened() as connection:
            async with anyio.create_task_group() as group:
                await user.begin(connection)
                lock = locks.mutex("order", 1)
                async with lock.in_transaction(connection, reason="book") as held:
                    assert held.fence > 0
                    group.start_soon(follow)
                    await wait_until(user.waited_for, 30)
                    await user.ask(connection, BOOK)
                assert await lock.locked()
                await anyio.sleep(0.3)
                assert not booked  # the transaction has not ended
                await user.ask(connection, "COMMIT")
            assert booked == [1]

    async def test_a_lock_in_a_transaction_is_entered_once(self, user: User) -> None:
        """Else what is looked at when the transaction has ended was another's grant."""
        async with connect(user.url) as locks, user.opened() as connection:
            entering = locks.mutex("order", 1).in_transaction(connection)
            async with user.transaction(connection), entering:
                pass
            with pytest.raises(ConfigurationError, match="entered already"):
                async with entering:
                    pass

    async def test_one_after_the_other_in_one_task(self, user: User) -> None:
        """What the last one left behind is looked at before the next is refused."""
        async with connect(user.url) as locks, user.opened() as connection:
            lock = locks.mutex("order", 1)
            for _ in range(5):
                async with user.transaction(connection):
                    async with lock.in_transaction(connection, timeout=10):
                        await user.ask(connection, BOOK)
                    with pytest.raises(WouldDeadlock):
                        await lock.acquire(10)
                    with pytest.raises(WouldDeadlock):
                        async with lock.in_transaction(connection, timeout=10):
                            pass
            async with lock.acquire(10):
                assert await user.ask(connection, BOOKED) == 5

    async def test_several_locks_after_it_in_one_task(self, user: User) -> None:
        """All of them are looked at before any is asked for."""
        async with connect(user.url) as locks, user.opened() as connection:
            lock, other = locks.mutex("order", 1), locks.mutex("order", 2)
            for _ in range(5):
                async with user.transaction(connection):
                    async with lock.in_transaction(connection):
                        pass
                    with pytest.raises(WouldDeadlock):
                        await locks.multi(other, lock)
                    assert not await other.locked()
                async with locks.multi(other, lock):
                    pass

    async def test_no_step_of_ours_is_taken_for_it(self, user: User) -> None:
        """A renewal, or another look, under way when it is looked at."""
        for statement in user.under_way:
            async with (
                connect(user.url) as locks,
                user.opened() as step,
                locks.mutex("order", 1) as held,
                anyio.create_task_group() as group,
            ):
                store, lease = locks._session.client.store, held._state.lease
                assert Capability.TRANSACTIONS in store.capabilities
                await user.begin(step)
                await user.ask(step, statement)

                async def end(step: Connection = step) -> None:
                    await anyio.sleep(0.05)
                    await user.ask(step, "COMMIT")

                group.start_soon(end)
                assert not await store.joined(lease.resource, lease.ticket)

    async def test_a_lock_in_a_transaction_vanishes_with_a_rollback(
        self, user: User
    ) -> None:
        async with connect(user.url) as locks, user.opened() as connection:
            with pytest.raises(ZeroDivisionError):
                async with user.transaction(connection):
                    lock = locks.mutex("order", 1)
                    async with lock.in_transaction(connection):
                        await user.ask(connection, BOOK)
                        raise ZeroDivisionError
            assert (
                await user.free(TRANSACTION_LEASE - 1) == 0
            )  # given back, not run out

    async def test_a_lock_in_a_transaction_is_renewed_meanwhile(
        self, user: User
    ) -> None:
        async with connect(user.url) as locks, user.opened() as connection:
            async with (
                user.transaction(connection),
                locks.mutex("order", 1).in_transaction(connection) as held,
            ):
                left = held.expires_in
                assert left is not None
                with anyio.fail_after(TRANSACTION_LEASE):
                    while (now := held.expires_in) is None or now <= left:
                        left = min(left, now or left)
                        await anyio.sleep(0.01)
                held.check()
            await user.free()

    async def test_a_lock_in_a_transaction_holds_without_renewals(
        self, user: User
    ) -> None:
        """The row lock holds where the lease does not."""
        with Proxy(user.port()) as proxy:
            through = user.url.replace(f":{user.port()}/", f":{proxy.port}/")
            async with (
                user.opened() as connection,
                connect(f"{user.url}?call_timeout=60") as others,
            ):
                locks = await connect(f"{through}?call_timeout=0.5")
                entered: list[float] = []

                async def follow() -> None:
                    async with others.mutex("order", 1):
                        entered.append(monotonic())

                async with anyio.create_task_group() as group:
                    await user.begin(connection)
                    lock = locks.mutex("order", 1)
                    async with lock.in_transaction(connection) as held:
                        proxy.refuse()
                        proxy.cut()
                        group.start_soon(follow)
                        with anyio.fail_after(60):
                            while not held.lost:  # noqa: ASYNC110 - it is no event
                                await anyio.sleep(0.01)
                        await anyio.sleep(1)
                        assert not entered
                        await user.ask(connection, BOOK)
                    ended = monotonic()
                    await user.ask(connection, "COMMIT")
                assert entered[0] > ended
                with pytest.raises(BackendUnavailable):
                    await locks.mutex("order", 2).acquire(timeout=1)
                await locks.aclose()

    async def test_a_lock_in_a_transaction_cannot_be_broken(self, user: User) -> None:
        """Who tries is not answered, and changes nothing before it ends."""
        async with connect(user.url) as locks, user.opened() as connection:
            async with user.transaction(connection):
                lock = locks.mutex("order", 1)
                async with lock.in_transaction(connection):
                    seen = await lock.info()
                    async with connect(f"{user.url}?call_timeout=0.5") as admin:
                        with pytest.raises(BackendUnavailable):
                            await admin.force_release(seen, reason="impatience")
                    again = await lock.info()
                    assert again.holders[0].holder == seen.holders[0].holder
                    await user.ask(connection, BOOK)
            assert await user.free() == 1

    async def test_sessions_of_sqlalchemy(self, user: User) -> None:
        engine = create_async_engine(user.engine)
        async with connect(user.url) as locks:
            lock = locks.rwlock("order", 1).writer
            async with (
                AsyncSession(engine) as session,
                session.begin(),
                lock.in_transaction(session),
            ):
                await session.execute(text(BOOK))
            assert await user.free() == 1
            async with engine.connect() as connection:
                async with lock.in_transaction(connection):
                    await connection.execute(text(BOOK))
                await connection.rollback()
            assert await user.free() == 1
            bare = engine.execution_options(isolation_level="AUTOCOMMIT")
            async with bare.connect() as connection:
                with pytest.raises(ConfigurationError, match="no transaction"):
                    async with lock.in_transaction(connection):
                        pass
            assert await user.free() == 1
        await engine.dispose()

    async def test_locks_that_cannot_join_a_transaction(self, user: User) -> None:
        async with connect(user.url) as locks, user.opened() as connection:
            lock = locks.mutex("order", 1)

            async def refused(what: str, transaction: object) -> None:
                with pytest.raises(ConfigurationError, match=what):
                    async with lock.in_transaction(transaction):
                        pass
                await user.free()

            await refused("no transaction has begun", connection)
            await refused("str is not a transaction", "BEGIN")
            elsewhere = create_async_engine("sqlite+aiosqlite://")
            async with elsewhere.connect() as other:
                await refused("AsyncConnection is not a transaction", other)
            await elsewhere.dispose()
            with pytest.raises(ConfigurationError, match="is not visible"):
                async with user.transaction(connection, frozen=True):
                    await user.ask(connection, BOOKED)  # it sees nothing newer now
                    async with lock.in_transaction(connection):
                        pass
            await user.free()
            async with user.transaction(connection):
                with pytest.raises(LockTimeout):
                    async with locks.mutex("order", 2), connect(user.url) as others:
                        waits = others.mutex("order", 2)
                        async with waits.in_transaction(connection, timeout=0):
                            pass
        async with connect("memory://") as locks, user.opened() as connection:
            with pytest.raises(Unsupported, match="has no lock in_transaction"):
                async with locks.mutex("order", 1).in_transaction(connection):
                    pass

    async def test_cancelled_while_it_waits(self, user: User) -> None:
        async with (
            connect(user.url) as locks,
            connect(user.url) as others,
            user.opened() as connection,
        ):
            async with others.mutex("order", 1), user.transaction(connection):
                with anyio.move_on_after(0.3) as scope:
                    async with locks.mutex("order", 1).in_transaction(connection):
                        pass
                assert scope.cancelled_caught
                assert await user.ask(connection, BOOKED) == 0  # it is as it was
            await user.free()
