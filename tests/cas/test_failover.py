"""A failover that lost the last grants: the next one's fence is above them.

The tables are put back to what a replica had. A fence that is counted from what stands
there would come again, and two holders would have the same one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from oracledb import DB_TYPE_TIMESTAMP

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.cas.table_cas import load_record
from aiorwlock_remote.core.codec import dumps
from aiorwlock_remote.core.timing import MICROS
from tests.backends.oracle.programs import make_tables
from tests.servers.oracle.client import OracleUser
from tests.servers.plain import PlainMariadb, PlainOracle, PlainPostgresql
from tests.servers.plain_seats import PlainSeats
from tests.servers.real_oracle import real_oracle

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]

COLUMNS = {
    "mutex_locks": "resource_type, resource_id, ticket, acquired_at",
    "doormans": "resource_type, resource_id, active_readers, has_pending_writer,"
    " pending_writer, updated_at, created_at, version, record",
}
Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(params=["postgresql", "mariadb", "mysql", "oracle"])
def url_and_plain(request: pytest.FixtureRequest) -> tuple[str, PlainSeats]:
    """A store, and another program at its tables."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("tables")
        return url, PlainPostgresql(url, "")
    if request.param in {"mariadb", "mysql"}:
        url = request.getfixturevalue(f"{request.param}_tables")
        return url, PlainMariadb(url, "")
    real = real_oracle()
    if real is not None:
        return real.url, PlainOracle(real, "")
    user: OracleUser = request.getfixturevalue("oracle_user")
    make_tables(user)
    user = user.at("19c")
    return user.url, PlainOracle(user, "")


def saved(plain: PlainSeats) -> Rows:
    """All rows of both tables."""
    rows: Rows = {}
    with plain.connected() as connection, connection.cursor() as cursor:
        for table, columns in COLUMNS.items():
            cursor.execute(f"SELECT {columns} FROM {table}")  # noqa: S608
            rows[table] = [tuple(map(_read, row)) for row in cursor.fetchall()]
    return rows


def _read(value: Any) -> Any:  # noqa: ANN401 - a CLOB has to be read
    return value.read() if hasattr(value, "read") else value


def put_back(plain: PlainSeats, rows: Rows) -> None:
    """Both tables as they were."""
    with plain.connected() as connection, connection.cursor() as cursor:
        for table, columns in COLUMNS.items():
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608
            names = [column.strip() for column in columns.split(",")]
            binds = ", ".join(plain.bind.format(name) for name in names)
            for row in rows[table]:
                if isinstance(plain, PlainOracle):  # its DATE has whole seconds only
                    times = [n for n in names if n.endswith("_at")]
                    cursor.setinputsizes(**dict.fromkeys(times, DB_TYPE_TIMESTAMP))
                insert = f"INSERT INTO {table} ({columns}) VALUES ({binds})"  # noqa: S608
                cursor.execute(insert, dict(zip(names, row, strict=True)))
        connection.commit()


async def fence_of(locks: Locks) -> int:
    async with locks.mutex("order", 1) as held:
        return held.fence


async def test_a_lost_grant(url_and_plain: tuple[str, PlainSeats]) -> None:
    """The replica knows that nobody was in, for whoever asks, whatever it remembers."""
    url, plain = url_and_plain
    async with connect(url) as locks, connect(url) as others:
        first = await fence_of(locks)
        rows = saved(plain)
        lost = await fence_of(others)
        put_back(plain, rows)
        again = [await fence_of(locks), await fence_of(others)]
    assert first < lost < again[0] < again[1]


async def test_a_grant_that_was_lost_behind_another(
    url_and_plain: tuple[str, PlainSeats],
) -> None:
    """The replica knows of the holder before."""
    url, plain = url_and_plain
    async with connect(url) as locks, connect(url) as others:
        lock = locks.mutex("order", 1, on_lost="flag")
        held = await lock.acquire()
        rows = saved(plain)
        assert await held.release()
        lost = await fence_of(others)
        put_back(plain, rows)
        seen = await others.mutex("order", 1).info()
        assert [holder.fence for holder in seen.holders] == [held.fence]
        assert await others.force_release(seen, reason="test") == 1
        assert held.fence < lost < await fence_of(others)


async def test_a_row_of_the_version_before(
    url_and_plain: tuple[str, PlainSeats],
) -> None:
    """Its fences are counted from its creation, and the next ones go on from there."""
    url, plain = url_and_plain
    async with connect(url) as locks, connect(url) as others:
        held = await locks.rwlock("order", 1).reader.acquire()
        rows = saved(plain)
        *before, created_at, version, text = rows["doormans"][0]
        created = round(created_at.replace(tzinfo=UTC).timestamp() * MICROS)
        record = load_record(str(text), "")
        grants = tuple(replace(grant, fence=5) for grant in record.grants)
        text = dumps(replace(record, last=5, grants=grants))
        put_back(plain, rows | {"doormans": [(*before, created_at, version, text)]})
        async with others.rwlock("order", 1).reader as joined:
            assert joined.fence == created + 5
        assert await held.release()
        assert await fence_of(locks) > joined.fence
