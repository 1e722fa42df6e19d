"""Names and tickets that a careless database takes for each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations

import pytest

from aiorwlock_remote import Locks, connect
from tests.backends.mariadb.pools import pool_of
from tests.backends.mariadb.products import MYSQL_PRODUCT, Product
from tests.servers.mariadb import connected, run
from tests.servers.plain import PlainMariadb

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
    pytest.mark.only_on("asyncio", "what the server does is the same on both"),
]

NAMES = (
    *("a", "a ", " a", "A", "á", "a\u0301", "\uff41", "ß", "ss", "a\t", "😀", "😁"),
    *("'", "\\'", '"', "`", "%s", "{kind}", "'; DROP TABLE mutex_locks; --"),
)
MODES = (
    "STRICT_ALL_TABLES,ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
    "STRICT_ALL_TABLES,ANSI,ORACLE,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE",
    "STRICT_TRANS_TABLES,PAD_CHAR_TO_FULL_LENGTH,IGNORE_SPACE",
)


@asynccontextmanager
async def all_held(locks: Locks) -> AsyncIterator[None]:
    grants = [await locks.mutex(name, 1).acquire(timeout=0) for name in NAMES]
    grants += [await locks.mutex("by id", name).acquire(timeout=0) for name in NAMES]
    yield
    for held in grants:
        assert held.valid
        assert await held.release()


async def test_similar_names_are_different_locks(db_tables: str) -> None:
    assert len({*NAMES}) == len(NAMES)
    async with connect(db_tables) as locks, connect(db_tables) as others:
        async with all_held(locks):
            for name in NAMES:
                assert await others.mutex(name, 1).try_acquire() is None
            shown = {(d.resource_type, d.resource_id) async for d in locks.list()}
            assert shown >= {(name, "1") for name in NAMES}
            assert shown >= {("by id", name) for name in NAMES}
        async with all_held(others):
            pass


async def test_a_foreign_ticket_that_looks_like_ours(db_tables: str) -> None:
    plain = PlainMariadb(db_tables, "")
    tickets = ("t", "t ", "T", "t\\", "t'")
    for one, other in combinations(tickets, 2):
        assert plain.take(("order", 1), one)
        assert not plain.free(("order", 1), other)
        assert plain.free(("order", 1), one)
    async with connect(db_tables) as locks:
        assert await locks.acquire_mutex_lock("order", 1, "t")
        plain.put(("order", 1), "t ")
        assert not await locks.release_mutex_lock("order", 1, "t")
        assert plain.read(("order", 1)) == "t "


@pytest.mark.parametrize("mode", MODES)
async def test_whatever_mode_the_server_has(
    db_tables: str, product: Product, mode: str
) -> None:
    """Over a pool of somebody else's, whose sessions begin like that."""
    if product is MYSQL_PRODUCT:
        mode = mode.replace(",ORACLE", "")
    begin = f"SET SESSION sql_mode = '{mode}', time_zone = '-11:00'"
    async with (
        pool_of(db_tables, init_command=begin) as backend,
        connect(backend) as locks,
        connect(db_tables) as others,
    ):
        async with all_held(locks):
            assert await others.mutex("'", 1).try_acquire() is None
        async with others.mutex("order", 1) as held:
            before = held.fence
        async with locks.mutex("order", 1) as held:
            assert held.fence > before


async def test_times_are_in_utc_whatever_the_zone(db_tables: str) -> None:
    """A published INSERT leaves ``acquired_at`` to the table."""
    with connected(db_tables, init_command="SET time_zone = '+13:00'") as far:
        far.query(
            "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
            " VALUES ('order', 1, 'theirs')"
        )
    ((age,),) = run(
        db_tables,
        "SELECT TIMESTAMPDIFF(SECOND, acquired_at, UTC_TIMESTAMP()) FROM mutex_locks",
    )
    assert abs(age) < 60
    async with connect(db_tables) as locks:
        (found,) = [d async for d in locks.stale(older_than=0)]
        assert abs(found.holders[0].age) < 60
