"""What is wrong with tables and rows: the error names that, and nothing else."""

from __future__ import annotations

import psycopg
import pytest

from aiorwlock_remote import (
    BadRecord,
    ConfigurationError,
    LockError,
    Unsupported,
    connect,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "what the server says is the same on both"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]

SHORT = "ALTER TABLE {} ALTER COLUMN {} TYPE varchar(9)"
COLUMN = ("varying(9)", "a column of mutex_locks or doormans is shorter", "ALTER TABLE")
RULE = "CREATE RULE nope AS ON INSERT TO {} DO INSTEAD NOTHING"
VIEW = "ALTER TABLE {0} RENAME TO old; CREATE VIEW {0} AS SELECT DISTINCT * FROM old"
REWRITTEN = ("a rule or a view changes", "DROP RULE")
BEFORE = "INSERT INTO mutex_locks VALUES ('order', 1, 'x', '0044-03-15 00:00+00 BC')"
WRONG: list[tuple[str, type[LockError], tuple[str, ...]]] = [
    (SHORT.format("mutex_locks", "ticket"), ConfigurationError, COLUMN),
    (SHORT.format("doormans", "version"), ConfigurationError, COLUMN),
    (RULE.format("mutex_locks"), Unsupported, ('"mutex_locks"', *REWRITTEN)),
    (RULE.format("doormans"), Unsupported, ('"doormans"', *REWRITTEN)),
    (VIEW.format("mutex_locks"), Unsupported, ('"mutex_locks"', *REWRITTEN)),
    (BEFORE, BadRecord, ("acquired_at", "not a time", "correct or delete its row")),
]
NEVER = ("PgBouncer", "trigger", "policy", "another name")
ITEMS = (
    "CREATE TABLE items (id integer PRIMARY KEY, lock_mark text DEFAULT 'Unlock', "
    "read_lock_count integer DEFAULT 0, lock_reason text); INSERT INTO items VALUES (1)"
)


def run(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text)


@pytest.mark.parametrize(("text", "error", "words"), WRONG)
async def test_errors_of_damaged_tables(
    tables: str, text: str, error: type[LockError], words: tuple[str, ...]
) -> None:
    run(tables, text)
    async with connect(tables) as locks:
        with pytest.raises(error) as caught:
            await locks.mutex("order", 1).acquire(timeout=5)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert [word for word in NEVER if word in message] == [], message


async def test_a_text_as_the_key_of_a_number(tables: str) -> None:
    run(tables, ITEMS)
    async with connect(tables) as locks:
        with pytest.raises(ConfigurationError) as caught:
            await locks.row_lock("items", "abc").try_write()
    message = str(caught.value)
    for word in ("items/abc", "'abc'", "with the type of the key column", "id"):
        assert word in message
