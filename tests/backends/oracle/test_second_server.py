"""Ours and the published statements at a second server of Oracle's wire, not our own.

It takes a tenth of a second for a step: the conformance suite at it is a session of its
own, `nox -s mirror`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import oracledb
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.backends.oracle.statements import statements_of
from tests.backends.oracle.differential import oracle
from tests.cas.differential import compare
from tests.servers.mirror import Mirror, mirror_of
from tests.servers.postgresql import PostgresqlServer

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

INSERT = (
    "INSERT INTO mutex_locks (resource_type, resource_id, ticket) VALUES (:1, :2, :3)"
)
DELETE = (
    "DELETE FROM mutex_locks"
    " WHERE resource_type = :1 AND resource_id = :2 AND ticket = :3"
)


@pytest.fixture(scope="module")
def mirror(
    tmp_path_factory: pytest.TempPathFactory, postgresql_server: PostgresqlServer
) -> Iterator[Mirror]:
    """With our tables."""
    with mirror_of(postgresql_server, tmp_path_factory.mktemp("mirror")) as mirror:
        with oracledb.connect(**mirror.login) as connection:
            for statement in statements_of():
                connection.cursor().execute(statement)
        yield mirror


async def test_a_plain_program_and_ours(mirror: Mirror) -> None:
    """Whoever inserts the row has it; the other one fails at the unique key."""
    seat = ["order", 42, "theirs"]
    with oracledb.connect(**mirror.login) as plain, plain.cursor() as cursor:
        plain.autocommit = True
        async with connect(mirror.url, connect_timeout=30) as locks:
            mutex = locks.mutex("order", 42)
            async with mutex.acquire(timeout=0):
                with pytest.raises(oracledb.IntegrityError) as caught:
                    cursor.execute(INSERT, seat)
                assert caught.value.args[0].full_code == "ORA-00001"
                cursor.execute(DELETE, seat)
                assert cursor.rowcount == 0
            cursor.execute(INSERT, seat)
            assert await mutex.try_acquire() is None
            assert await locks.rwlock("order", 42).reader.try_acquire() is None
            assert [found.resource_id async for found in locks.stale()] == ["42"]
            cursor.execute(DELETE, seat)
            assert cursor.rowcount == 1
            async with mutex.acquire(timeout=0):
                pass


async def test_two_processes_exclude_each_other(mirror: Mirror) -> None:
    """Each waits for the other, and fences rise."""
    fences: list[int] = []
    inside = 0

    async def worker() -> None:
        nonlocal inside
        async with connect(mirror.url, connect_timeout=30) as locks:
            for _ in range(4):
                async with locks.mutex("order", 1).acquire(timeout=60) as held:
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    fences.append(held.fence)
                    inside -= 1

    await asyncio.gather(worker(), worker())
    assert fences == sorted(set(fences))
    assert len(fences) == 8


async def test_random_histories_agree_with_the_core(mirror: Mirror) -> None:
    """It does to the tables what the core says."""
    async with oracle(mirror.url) as tables:
        seen = await compare(tables, 60, 3)
    assert len(seen) > 8, seen
