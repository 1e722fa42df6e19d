"""Doormen that nobody uses any more, of which there may be very many."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest

from aiorwlock_remote._util import purge
from aiorwlock_remote.backends.postgresql import store as postgresql
from aiorwlock_remote.cas.driver import store as driver_store
from tests.backends.redis.connections import eventually
from tests.cas.tables import acquire, forgets_all, goes_by_keys, often, opened, orders

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

OLD = """
INSERT INTO doormans (resource_type, resource_id, updated_at)
SELECT 'order', number, now() - interval '100 s' FROM generate_series(1, %s) AS number
"""
USED = "UPDATE doormans SET updated_at = now() WHERE resource_id = "


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "ROWS_PER_REQUEST", 3)


def run(url: str, text: str, *values: object) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        done = connection.execute(text, values or None)
        return [row[0] for row in done.fetchall()] if done.description else []


def left(url: str) -> list[int]:
    return run(url, "SELECT resource_id FROM doormans ORDER BY resource_id")


async def test_a_portion_at_a_time(tables: str) -> None:
    """It is a portion of all there are: one statement takes as long in any table."""
    run(tables, OLD, 8)

    def use(number: int) -> None:
        run(tables, f"{USED}{number}")

    await goes_by_keys(tables, partial(left, tables), use)


async def test_a_locked_row_is_skipped(tables: str) -> None:
    """A step has locked the row, and may wait for somebody else; we do not wait."""
    run(tables, OLD, 3)
    async with opened(f"{tables}?call_timeout=2") as store:
        with psycopg.connect(tables) as step:
            step.execute("SELECT 1 FROM doormans WHERE resource_id = 2 FOR UPDATE")
            assert await store.forget(99) == ("order", 3)
            assert left(tables) == [2]


async def test_a_doorman_used_just_before_the_purge_is_kept(tables: str) -> None:
    """It was passed by while that was not yet to be seen."""
    run(tables, OLD, 3)
    async with opened(tables) as store:
        with psycopg.connect(tables) as step:
            step.execute(f"{USED}2")
            await store.forget(99)
        await store.forget(99)
    assert left(tables) == [2]


async def test_all_old_doormen_are_purged_in_time(
    tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    run(tables, OLD.replace("100 s", "2 h"), 100)
    await forgets_all(tables, partial(left, tables))


async def test_closing_ends_it(
    tables: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However much there is to be forgotten; what is under way has not failed."""
    monkeypatch.setattr(driver_store, "PURGE_EVERY", 1)
    monkeypatch.setattr(purge, "choice", min)
    run(tables, OLD.replace("100 s", "2 h"), 3_000)
    async with opened(tables) as store:
        await store.step(orders(1)[0], acquire("t"))
        await eventually(lambda: len(left(tables)) < 3_000, "it has begun")
    assert len(left(tables)) > 2_000
    assert not caplog.records
