"""What a server or a pool sets in its sessions, and our statements would feel."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.core.row import RowTable
from aiorwlock_remote.core.row_dialects import MARIADB
from aiorwlock_remote.recipes.row_lock.target import RowSql
from tests.backends.mariadb.pools import STRICT, pool_of
from tests.cas.tables import opened
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import run

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

SETTINGS = (
    "SET sql_select_limit = 1",
    "SET sql_select_limit = 0",
    "SET sql_big_selects = 0, max_join_size = 1",
    "SET sql_safe_updates = 1",
    "SET unique_checks = 0, foreign_key_checks = 0",
    "SET NAMES latin1",
    "SET character_set_results = utf16",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    "SET autocommit = 0",
)


def invoices(url: str) -> None:
    """A table of the user's, whose key has no index: safe updates want one."""
    needs = RowSql(RowTable("invoices"), 1, MARIADB).add_columns
    table = "CREATE TABLE invoices (id int) CHARACTER SET utf8mb4"
    run(url, table, "INSERT INTO invoices VALUES (1)", needs)


async def used(url: str) -> None:
    async with connect(url) as locks:
        one, other = locks.mutex("order", 1), locks.mutex("order", 2)
        async with one, other:
            assert len([found async for found in locks.list()]) == 2
        invoice = locks.row_lock("invoices", 1)
        async with invoice.write("naïve 🔒"):
            assert (await invoice.look()).reason == "naïve 🔒"
    async with opened(url) as store:
        await store.forget(0)


async def test_sessions_of_our_own_are_what_we_need(
    start_db: StartMariadb,
) -> None:
    """The server begins those of everybody who is no superuser like that."""
    server = start_db()
    invoices(server.url)
    run(server.url, "CREATE USER app", "GRANT ALL ON app.* TO app")
    failed = {}
    for setting in SETTINGS:
        run(server.root, f'SET GLOBAL init_connect = "{setting}"')
        try:
            await used(server.url.replace("root@", "app@"))
        except Exception as exc:  # noqa: BLE001 - all of them are reported at once
            failed[setting] = repr(exc)
    assert not failed


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("sql_select_limit = 1", "SET SESSION sql_select_limit = 18446744073709551615"),
        ("sql_select_limit = 0", "sql_select_limit keeps rows back"),
        ("sql_select_limit = 50", "sql_select_limit keeps rows back"),
        ("sql_big_selects = 0, max_join_size = 1", "SET SESSION sql_big_selects = ON"),
        ("character_set_results = utf16", "SET NAMES utf8mb4"),
    ],
)
async def test_an_unfit_pool_error_names_what_its_sessions_need(
    db_tables: str, setting: str, says: str
) -> None:
    begin = f"{STRICT}; SET {setting}"
    async with pool_of(db_tables, init_command=begin) as backend:
        with pytest.raises(ConfigurationError, match=says):
            await connect(backend)


async def test_safe_updates_of_a_pool(db_tables: str) -> None:
    """Locks have a key; a table of the user's may have none."""
    invoices(db_tables)
    begin = f"{STRICT}; SET sql_safe_updates = 1"
    async with (
        pool_of(db_tables, init_command=begin) as backend,
        connect(backend) as locks,
        locks.mutex("order", 1),
    ):
        with pytest.raises(ConfigurationError, match="sql_safe_updates = OFF"):
            await locks.row_lock("invoices", 1).try_write()
