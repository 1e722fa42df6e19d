"""A transaction that reads a snapshot, as in MariaDB: refused by what is there now."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from pymysql.constants import CLIENT
from pymysql.err import OperationalError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from aiorwlock_remote import StaleFence
from aiorwlock_remote.fencing.sql import FencedTable
from aiorwlock_remote.integrations.sqlalchemy.fencing import fenced_get
from tests.fencing.resources import CREATE, INSERT, Orm, Row, mariadb_url
from tests.servers.mariadb import connected, run

pytestmark = pytest.mark.slow

CELLS = FencedTable("cells", style="format")
NEWER = "UPDATE cells SET value = 70, fence = 7 WHERE id = 1"
OLD = "SET SESSION innodb_snapshot_isolation = OFF"
"""As it was before MariaDB 11.6.2: a statement that changes a row sees what is new."""
OURS = "UPDATE cells SET value = 50, fence = 5 WHERE id = 1"


@pytest.mark.parametrize("flag", [CLIENT.FOUND_ROWS, 0], ids=["matched", "changed"])
def test_statements(mariadb_empty: str, flag: int) -> None:
    run(mariadb_empty, CREATE, INSERT, OURS)
    with closing(connected(mariadb_empty, autocommit=False, client_flag=flag)) as db:
        cursor = db.cursor()
        cursor.execute(OLD)
        cursor.execute("SELECT fence FROM cells")
        assert cursor.fetchone() == (5,)
        run(mariadb_empty, NEWER)
        cursor.execute("SELECT fence FROM cells")
        assert cursor.fetchone() == (5,)  # the snapshot
        with pytest.raises(StaleFence):
            CELLS.write(cursor, 1, 5, {"value": 50})
        with pytest.raises(StaleFence):
            CELLS.read(cursor, 1, 6, ["value"])
        assert CELLS.read(cursor, 1, 7, ["value"]) == (70,)  # equal: nothing changed


@pytest.mark.parametrize("fence", [5, 8])
def test_a_server_that_refuses_old_snapshots(mariadb_empty: str, fence: int) -> None:
    """It says so itself, whatever the fence is; the transaction is to be begun anew."""
    run(mariadb_empty, CREATE, INSERT, OURS)
    with closing(connected(mariadb_empty, autocommit=False)) as db:
        cursor = db.cursor()
        cursor.execute("SET SESSION innodb_snapshot_isolation = ON")
        cursor.execute("SELECT fence FROM cells")
        run(mariadb_empty, NEWER)
        with pytest.raises(OperationalError, match="Record has changed"):
            CELLS.write(cursor, 1, fence, {"value": 50})
        db.rollback()
        cursor.execute("SELECT value, fence FROM cells")
        assert cursor.fetchone() == (70, 7)


@pytest.mark.asyncio
async def test_mapped_rows(mariadb_empty: str) -> None:
    orm = Orm(mariadb_url(mariadb_empty))
    await orm.make()
    async with AsyncSession(orm.engine) as session:
        await session.execute(text(OLD))
        known = await session.get(Row, 1)
        await asyncio.to_thread(run, mariadb_empty, NEWER)
        with pytest.raises(StaleFence):
            await fenced_get(session, Row, 1, 6)
        assert known is not None
        for fence in (7, 8):  # equal: the row is matched, and not changed
            assert await fenced_get(session, Row, 1, fence) is known
            assert (known.value, known.fence) == (70, fence)
    await orm.engine.dispose()
