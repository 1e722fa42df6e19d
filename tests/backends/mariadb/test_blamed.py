"""What is wrong with tables and rows: the error names that, and nothing else."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError, Unsupported, connect
from tests.servers.mariadb import run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "what the server says is the same on both"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]
ITEMS = (
    "CREATE TABLE items (id integer PRIMARY KEY, lock_mark varchar(20) DEFAULT "
    "'Unlock', read_lock_count integer DEFAULT 0, lock_reason text)"
)


@pytest.mark.parametrize(
    ("table", "column"), [("mutex_locks", "ticket"), ("doormans", "version")]
)
async def test_a_short_column(mariadb_tables: str, table: str, column: str) -> None:
    run(mariadb_tables, f"ALTER TABLE {table} MODIFY {column} varchar(9)")
    async with connect(mariadb_tables) as locks:
        with pytest.raises(ConfigurationError) as caught:
            await locks.mutex("order", 1).acquire(timeout=5)
    told = str(caught.value)
    assert f"'{column}'" in told
    assert "the column is shorter than `rwlock schema mariadb` makes it" in told
    assert "another name" not in told


@pytest.mark.parametrize("table", ["mutex_locks", "doormans"])
async def test_a_view(mariadb_tables: str, table: str) -> None:
    view = f"CREATE VIEW {table} AS SELECT * FROM old"  # noqa: S608 - a name of ours
    run(mariadb_tables, f"RENAME TABLE {table} TO old", view)
    with pytest.raises(Unsupported, match=f"{table} is a view"):
        await connect(mariadb_tables)


async def test_a_text_as_the_key_of_a_number(mariadb_tables: str) -> None:
    run(mariadb_tables, ITEMS, "INSERT INTO items (id) VALUES (1)")
    async with connect(mariadb_tables) as locks:
        with pytest.raises(ConfigurationError) as caught:
            await locks.row_lock("items", "abc").try_write()
    assert "if column id is a number, pass the key as one" in str(caught.value)
