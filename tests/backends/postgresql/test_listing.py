"""What is there: as much as there is, a page at a time."""

from __future__ import annotations

import psycopg
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.backends.postgresql.statements import statement

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]

DOORMEN = """
INSERT INTO doormans (resource_type, resource_id, record)
SELECT 'order', number, repeat('x', 400) FROM generate_series(1, 30000) AS number
"""
SEATS = """
INSERT INTO mutex_locks (resource_type, resource_id, ticket)
SELECT kind, number, 'theirs'
FROM unnest(ARRAY['order', 'other']) AS kind, generate_series(1, 1203) AS number
"""
READ = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"


async def test_more_than_a_page_is_listed(tables: str) -> None:
    """In both tables, or in one of them."""
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute(SEATS)
    own, other = connect(tables), connect(tables)
    async with own as locks, other as others, others.mutex("mine", 1):
        shown = [doorman async for doorman in locks.list()]
        kinds = [doorman.resource_type for doorman in shown]
        assert len(set(map(repr, shown))) == len(shown) == 2 * 1203 + 1
        assert {kind: kinds.count(kind) for kind in kinds} == {
            "mine": 1,
            "order": 1203,
            "other": 1203,
        }
    async with connect(tables, prefix="or") as locks:
        assert {d.resource_type async for d in locks.list()} == {"der"}


def test_no_more_is_read_than_a_page(tables: str) -> None:
    """The keys lead to it: a long list takes no time that grows with its square."""
    with psycopg.connect(
        tables, autocommit=True, cursor_factory=psycopg.RawCursor
    ) as connection:
        connection.execute(DOORMEN)
        connection.execute(SEATS)
        connection.execute("ANALYZE")
        with connection.transaction():
            rows = connection.execute(statement("scan"), ("order", 900)).fetchall()
            (read,) = connection.execute(READ).fetchone() or (None,)
    assert [row[1] for row in rows] == list(range(901, 1401))
    assert read is not None
    assert read < 5_000
