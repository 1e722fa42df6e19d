"""What is wrong with tables and rows: the error names that, and nothing else."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError, Unsupported, connect
from tests.backends.mariadb.products import MYSQL_PRODUCT, Product
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
async def test_a_short_column(
    db_tables: str, product: Product, table: str, column: str
) -> None:
    run(db_tables, f"ALTER TABLE {table} MODIFY {column} varchar(9)")
    async with connect(db_tables) as locks:
        with pytest.raises(ConfigurationError) as caught:
            await locks.mutex("order", 1).acquire(timeout=5)
    message = str(caught.value)
    assert f"'{column}'" in message
    assert f"shorter than `rwlock schema {product.scheme}` makes it" in message
    assert "another name" not in message


@pytest.mark.parametrize("table", ["mutex_locks", "doormans"])
async def test_a_view(db_tables: str, table: str) -> None:
    view = f"CREATE VIEW {table} AS SELECT * FROM old"  # noqa: S608 - a name of ours
    run(db_tables, f"RENAME TABLE {table} TO old", view)
    with pytest.raises(Unsupported, match=f"{table} is a view"):
        await connect(db_tables)


async def test_a_text_as_the_key_of_a_number(db_tables: str, product: Product) -> None:
    """MariaDB finds no row; MySQL refuses to compare them."""
    run(db_tables, ITEMS, "INSERT INTO items (id) VALUES (1)")
    async with connect(db_tables) as locks:
        with pytest.raises(ConfigurationError) as caught:
            await locks.row_lock("items", "abc").try_write()
    message = str(caught.value)
    if product is MYSQL_PRODUCT:
        assert "compare 'abc' with the type of the key column id" in message
    else:
        assert "if column id is a number, pass the key as one" in message
