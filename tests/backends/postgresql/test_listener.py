"""The connection that listens is lost, and comes again."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import asyncpg
import psycopg
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.backends.postgresql import PostgresqlBackend, listener
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import take, waited_for
from tests.cancelled_tasks import cancel_all_others
from tests.renewals import renewed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

LISTENERS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN%'
"""


def listeners(url: str) -> set[int]:
    with psycopg.connect(url) as connection:
        return {pid for (pid,) in connection.execute(LISTENERS)}


def cut(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])


def unheard(url: str) -> str:
    """The same, for a process that opens no connection that listens."""
    return f"{url}?listen=no"


async def test_it_is_there_as_long_as_the_locks_are(tables: str) -> None:
    async with connect(tables) as locks, connect(unheard(tables)) as others:
        async with locks.mutex("order", 1):
            pass
        assert not listeners(tables)  # nobody has waited
        async with waited_for(others, locks, lambda: has(tables, 1)):
            pass
        assert len(listeners(tables)) == 1
    await wait_until(lambda: has(tables, 0), 5)


async def test_lost_it_comes_again(tables: str) -> None:
    async with connect(tables) as locks, connect(unheard(tables)) as others:
        for _ in range(3):
            async with waited_for(others, locks, lambda: has(tables, 1), 10):
                # whether it listens just now or not
                (pid,) = listeners(tables)
                cut(tables, pid)
            await wait_until(partial(gone, tables, pid), 10)
        await wait_until(lambda: has(tables, 1), 10)


def test_cancelled_from_outside_it_comes_again(tables: str) -> None:
    """A program may cancel every task of its loop, and go on."""

    async def program() -> None:
        async with connect(tables) as locks, connect(unheard(tables)) as others:
            for _ in range(3):
                async with waited_for(others, locks, lambda: has(tables, 1), 10):
                    pass
                await cancel_all_others()
                await wait_until(lambda: has(tables, 0), 10)

    asyncio.run(program())


async def test_the_reason_of_a_lost_listener_is_logged(
    tables: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by what has no words: a server that does not answer in time."""

    async def silent(_: object) -> bool:
        raise TimeoutError

    monkeypatch.setattr(listener, "is_pooled", silent)
    async with (
        connect(tables) as locks,
        connect(tables) as others,
        others.mutex("order", 1),
        anyio.create_task_group() as group,
    ):
        group.start_soon(take, locks)
        await wait_until(lambda: logged(caplog, "error=TimeoutError"), 10)
        group.cancel_scope.cancel()


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


async def test_without_it_they_poll(tables: str) -> None:
    async with connect(unheard(tables)) as locks, connect(unheard(tables)) as others:
        (finding,) = [f async for f in locks.examine() if f.name == "waiting"]
        assert (finding.value, finding.meaning) == (
            "polls",
            "cheap looks every 5 to 250 ms",
        )
        async with waited_for(others, locks, lambda: waits(others)):
            pass
        assert not listeners(tables)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.usefixtures("renewed_often")
async def test_over_a_pool_of_the_users(tables: str) -> None:
    async with asyncpg.create_pool(tables, min_size=0, max_size=2) as pool:
        backend = PostgresqlBackend(pool)
        assert "secret" not in repr(backend)
        async with connect(backend) as locks, connect(unheard(tables)) as others:
            async with waited_for(others, locks, lambda: waits(others)):
                pass
            async with locks.mutex("kept", 1) as kept:
                await renewed(kept)
        assert not listeners(tables)
        assert await pool.fetchval("SELECT 1") == 1


async def has(url: str, number: int) -> bool:
    return len(listeners(url)) == number


async def gone(url: str, pid: int) -> bool:
    return pid not in listeners(url)


async def waits(locks: Locks) -> bool:
    return bool((await locks.mutex("order", 1).info()).queue)
