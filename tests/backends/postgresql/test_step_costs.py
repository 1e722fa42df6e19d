"""What a step costs, and what becomes of it when others are quicker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import anyio
import psycopg
import pytest

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.cas.table_cas import CROWD, UNCONTENDED_AFTER
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import LOUD, queued, statements, waits
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.plain import PlainPostgresql
from tests.servers.postgresql import Postgresql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.usefixtures("patient_steps"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


@pytest.fixture
def server(start_postgresql: StartPostgresql) -> Postgresql:
    return start_postgresql(config=LOUD)


async def test_a_mutex_is_one_statement_each_way(server: Postgresql) -> None:
    async with connect(server.url) as locks:
        for _ in range(3):
            held = await locks.mutex("order", 1).acquire()
            before = len(statements(server))
            assert await held.release()
            assert len(statements(server)) == before + 1
            before = len(statements(server))
            held = await locks.mutex("order", 1).acquire()
            assert len(statements(server)) == before + 1
            await held.release()


async def test_readers_are_one_statement_each(server: Postgresql) -> None:
    async with connect(server.url) as locks:
        lock, before = locks.rwlock("c", 1), len(statements(server))
        for _ in range(3):
            async with lock.reader:
                pass
        assert len(statements(server)) == before + 6


async def test_a_refused_step_returns_the_stored_row(server: Postgresql) -> None:
    """No second statement asks for it."""
    async with connect(server.url) as locks, connect(server.url) as others:
        async with others.mutex("order", 1):
            before = len(statements(server))
            assert await locks.mutex("order", 1).try_acquire() is None
            assert len(statements(server)) == before + 1
        before = len(statements(server))
        async with locks.mutex("order", 1):  # it knows of the holder only
            assert len(statements(server)) == before + 2


async def test_after_a_calm_a_refusal_tells_nothing(server: Postgresql) -> None:
    """The plan that would tell it is left out: a second statement asks."""
    async with connect(server.url) as locks, connect(server.url) as others:
        for _ in range(UNCONTENDED_AFTER):
            async with locks.mutex("order", 1):
                pass
        async with others.mutex("order", 1):
            before = len(statements(server))
            assert await locks.mutex("order", 1).try_acquire() is None
            assert len(statements(server)) == before + 2
            before = len(statements(server))
            assert await locks.mutex("order", 1).try_acquire() is None
            assert len(statements(server)) == before + 1  # the calm is over


async def test_a_foreign_insert_under_way_is_waited_for(server: Postgresql) -> None:
    """Its outcome decides, and nothing of ours is left behind if it wins."""
    plain = PlainPostgresql(server.url, "")
    async with connect(server.url) as locks:
        with psycopg.connect(server.url) as foreign:
            foreign.execute(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES ('order', 1, 'theirs')"
            )
            results: list[object] = []
            async with anyio.create_task_group() as group:

                async def attempt() -> None:
                    results.append(await locks.mutex("order", 1).try_acquire())

                group.start_soon(attempt)
                await wait_until(lambda: waits(server), 5)
                foreign.commit()
            assert results == [None]
        assert plain.read(("order", 1)) == "theirs"
        assert plain.free(("order", 1), "theirs")
        async with locks.mutex("order", 1):
            assert plain.read(("order", 1)) not in (None, "theirs")


async def test_a_doorman_made_at_the_same_time_undoes_the_seat(
    server: Postgresql,
) -> None:
    """The seat was free, the doorman's row was not there, and then it was."""
    async with connect(server.url) as locks:
        with psycopg.connect(server.url) as foreign:
            foreign.execute(
                "INSERT INTO doormans (resource_type, resource_id, version, record)"
                " VALUES ('order', 1, 'new', %s)",
                [dumps(Doorman())],
            )
            fences: list[int] = []
            async with anyio.create_task_group() as group:

                async def attempt() -> None:
                    async with locks.mutex("order", 1) as held:
                        fences.append(held.fence)

                group.start_soon(attempt)
                await wait_until(lambda: waits(server), 5)
                foreign.commit()
        assert len(fences) == 1
        assert PlainPostgresql(server.url, "").read(("order", 1)) is None


# ------------------------------------------------------------------------------
# Many steps that meet at one row: none of them waits for another in the server.


ATTEMPTS = 6
"""Statements that show that a step was refused, and tried again."""


@contextmanager
def row_in_use(server: Postgresql) -> Iterator[None]:
    """Have the doorman's row locked, as a step of another process has for a moment."""
    with psycopg.connect(server.url) as other:
        other.execute("SELECT 1 FROM doormans FOR UPDATE")
        yield
        other.rollback()


@asynccontextmanager
async def queue_of(
    server: Postgresql, waiting: int
) -> AsyncIterator[tuple[Locks, Held, anyio.Event]]:
    """Yield a holder with so many waiting clients, and an event set by their last."""
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        owner = await stack.enter_async_context(connect(server.url))
        held = await owner.mutex("order", 1).acquire()
        served, all_served = list[int](), anyio.Event()

        async def wait(locks: Locks, number: int) -> None:
            async with locks.mutex("order", 1):
                served.append(number)
            if len(served) == waiting:
                all_served.set()

        for number in range(waiting):
            locks = await stack.enter_async_context(connect(server.url))
            group.start_soon(wait, locks, number)

        await wait_until(partial(queued, owner, waiting), 20)
        yield owner, held, all_served


async def test_a_release_before_a_crowd_does_not_wait_for_a_row(
    server: Postgresql,
) -> None:
    """It is tried again until the row is free, and then all get in."""
    async with queue_of(server, CROWD) as (_, held, all_served):
        async with anyio.create_task_group() as group:
            with row_in_use(server):
                before = len(statements(server))
                group.start_soon(held.release)

                async def tried() -> bool:
                    return len(statements(server)) >= before + ATTEMPTS

                await wait_until(tried, 20)
                assert not await waits(server)
        with anyio.fail_after(30):
            await all_served.wait()


async def test_with_few_waiters_a_step_waits_for_the_row(server: Postgresql) -> None:
    """The control of the other tests, and the shorter way for two or three."""
    async with queue_of(server, 1) as (_, held, all_served):
        async with anyio.create_task_group() as group:
            with row_in_use(server):
                group.start_soon(held.release)
                await wait_until(partial(waits, server), 4)
        with anyio.fail_after(30):
            await all_served.wait()
