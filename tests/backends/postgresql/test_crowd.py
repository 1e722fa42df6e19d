"""Many steps that meet at one row: none of them waits for another in the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import anyio
import psycopg
import pytest

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.cas.table_cas import CROWD
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import LOUD, queued, statements, waits
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.postgresql import Postgresql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.usefixtures("patient_steps"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]
ATTEMPTS = 6
"""Statements that show that a step was refused, and tried again."""


@pytest.fixture
def server(start_postgresql: StartPostgresql) -> Postgresql:
    return start_postgresql(config=LOUD)


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
