"""What a step costs, and what becomes of it when others are quicker."""

from __future__ import annotations

import anyio
import psycopg
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.cas.table_cas import UNCONTENDED_AFTER
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import LOUD, statements, waits
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.plain_postgresql import PlainPostgresql
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
