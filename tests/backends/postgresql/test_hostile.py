"""What administrators and other programs do to the tables while they are in use."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import psycopg
import pytest

from aiorwlock_remote import BackendUnavailable, BadRecord, Mutex, connect
from tests.backends.redis.connections import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

DROPPED = """
CREATE FUNCTION dropped() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER dropping BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION dropped()
"""
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
THEIRS = "INSERT INTO mutex_locks VALUES ('order', 1, 'theirs', %s)"


def run(url: str, text: str, *values: object) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text, values or None)


@pytest.mark.parametrize("since", ["infinity", "-infinity", "12000-01-01"])
async def test_a_seat_taken_at_no_time(tables: str, since: str) -> None:
    """Each request fails; once mended, the row is a mutex record like any other."""
    run(tables, THEIRS, since)
    async with connect(tables) as locks:
        lock = locks.mutex("order", 1)
        with pytest.raises(BadRecord, match=r"order/1: acquired_at of the row"):
            await lock.try_acquire()
        async with locks.mutex("order", 2):
            pass
        run(tables, "UPDATE mutex_locks SET acquired_at = %s", datetime.now(UTC))
        assert await lock.try_acquire() is None


async def test_half_a_doorman_is_no_doorman(tables: str) -> None:
    """Its fences would begin anew; set free of its version, they go on from now."""
    async with connect(tables) as locks, locks.mutex("order", 1) as before:
        pass
    run(tables, "UPDATE doormans SET record = NULL")
    async with connect(tables) as locks:
        lock = locks.mutex("order", 1)
        for _ in range(2):
            with pytest.raises(
                BadRecord,
                match="order/1: its row of doormans has a version but no record",
            ):
                await lock.try_acquire()
        run(tables, "UPDATE doormans SET version = NULL")
        async with lock as held:
            assert held.fence > before.fence


@pytest.mark.parametrize("table", ["doormans", "mutex_locks"])
async def test_rows_that_a_trigger_drops(tables: str, table: str) -> None:
    run(tables, DROPPED.format(table))
    async with connect(tables) as locks:
        with pytest.raises(BackendUnavailable, match="is there a trigger") as caught:
            await locks.mutex("order", 1).try_acquire()
        assert caught.value.nothing_done


async def test_a_table_that_is_locked_for_long(tables: str) -> None:
    """Each step is given up by the server, too: none of its sessions is left waiting.

    It would not notice that its client has gone, and soon let nobody in.
    """
    with (
        psycopg.connect(tables) as migration,
        psycopg.connect(tables, autocommit=True) as spy,
    ):

        def nobody_waits() -> bool:
            return spy.execute(WAITING).fetchone() == (0,)

        async with connect(f"{tables}?call_timeout=1") as locks:
            migration.execute("LOCK TABLE doormans")
            async with anyio.create_task_group() as group:
                for number in range(4):
                    group.start_soon(refused, locks.mutex("order", number))
            await eventually(nobody_waits, "the server has given up")
            migration.rollback()
            async with locks.mutex("order", 1):
                pass


async def refused(lock: Mutex) -> None:
    with pytest.raises(BackendUnavailable, match="statement timeout") as caught:
        await lock.try_acquire()
    assert caught.value.nothing_done
