"""Doormen that nobody uses any more, of which there may be very many."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from aiorwlock_remote.backends.mariadb import store as mariadb
from aiorwlock_remote.backends.mariadb.statements import statement
from tests.backends.mariadb.products import numbers, waiting
from tests.backends.redis.connections import eventually
from tests.cas.tables import forgets_all, goes_by_keys, often, opened
from tests.servers.mariadb import connected, run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]

OLD = (
    "INSERT INTO doormans (resource_type, resource_id, active_readers, updated_at)"
    " SELECT 'order', seq, '{}', UTC_TIMESTAMP(6) - INTERVAL 7200 SECOND FROM "
)
USED = "UPDATE doormans SET updated_at = UTC_TIMESTAMP(6) WHERE resource_id = "


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mariadb, "ROWS_PER_REQUEST", 3)


def left(url: str) -> list[int]:
    rows = run(url, "SELECT resource_id FROM doormans ORDER BY resource_id")
    return [row[0] for row in rows]


async def test_a_portion_at_a_time(db_tables: str) -> None:
    """It is a portion of all there are: one statement takes as long in any table."""
    run(db_tables, f"{OLD}{numbers(8)}")

    def use(number: int) -> None:
        run(db_tables, f"{USED}{number}")

    await goes_by_keys(db_tables, partial(left, db_tables), use)


async def test_a_name_with_a_space_behind_it_is_another_one(
    db_tables: str,
) -> None:
    """Portions end between the two."""
    spaced = OLD.replace("order", "order ")
    run(db_tables, f"{OLD}{numbers(3)}", f"{spaced}{numbers(3)}")
    async with opened(db_tables) as store:
        assert await store.forget(99) == ("order", 3)
        assert len(left(db_tables)) == 3
        assert await store.forget(99, ("order", 3)) == ("order ", 3)
    assert left(db_tables) == []


def test_no_more_is_looked_at_than_a_portion(db_tables: str) -> None:
    """The key leads to both ends of it, in the midst of a type as well."""
    run(db_tables, f"{OLD}{numbers(9000)}")
    begin: dict[str, Any] = {"kind": "order", "number": 6_000}
    find = statement("portion", **begin, most=100)
    begin |= {"last_kind": "order", "last_number": 6_100}
    delete = statement("forget", **begin, seconds=99)
    with connected(db_tables) as connection, connection.cursor() as cursor:
        for text in (find, delete):
            cursor.execute("FLUSH STATUS")
            cursor.execute(text)
            cursor.execute("SHOW STATUS LIKE 'Handler_read_%'")
            assert sum(int(count) for _, count in cursor.fetchall()) < 1_000
    assert len(left(db_tables)) == 8_900


async def test_a_doorman_used_just_before_the_purge_is_kept(db_tables: str) -> None:
    """Who has to wait for a row finds it changed, and leaves it."""
    run(db_tables, f"{OLD}{numbers(3)}")
    async with opened(db_tables) as store:
        with connected(db_tables, autocommit=False) as step:
            step.cursor().execute(f"{USED}2")
            async with anyio.create_task_group() as group:
                group.start_soon(store.forget, 99)
                await eventually(lambda: len(waiting(db_tables)) > 0, "waits")
                step.commit()
    assert left(db_tables) == [2]


async def test_after_a_deadlock_it_is_asked_again(db_tables: str) -> None:
    """The server ends the transaction that has changed fewer rows: ours."""
    run(db_tables, f"{OLD}{numbers(3)}", "CREATE TABLE many (n integer)")
    by_key = "AND resource_type = 'order'"  # else the server locks all rows
    async with opened(db_tables) as store:
        with connected(db_tables, autocommit=False) as other:
            cursor = other.cursor()
            cursor.execute(f"INSERT INTO many SELECT seq FROM {numbers(1000)}")  # noqa: S608 - no input
            cursor.execute(f"{USED}2 {by_key}")
            async with anyio.create_task_group() as group:
                group.start_soon(store.forget, 99)
                await eventually(lambda: len(waiting(db_tables)) > 0, "waits")
                cursor.execute(f"{USED}1 {by_key}")
                other.commit()
    assert left(db_tables) == [1, 2]


async def test_all_old_doormen_are_purged_in_time(
    db_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    run(db_tables, f"{OLD}{numbers(100)}")
    await forgets_all(db_tables, partial(left, db_tables))
