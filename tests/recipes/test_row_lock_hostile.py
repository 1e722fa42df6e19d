"""Names, keys and reasons that try to be something else; rights that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from aiorwlock_remote import ConfigurationError, Unsupported, connect
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, LOCKED, MODES, ask, opened
from tests.servers.mariadb import run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "no loop has a part in it"),
]

NASTY = (
    "O'Brien; DROP TABLE invoices --\n\t\\' %s %% {0} :1 $1 ? ` \" \u2028 \U0001f512"
)

CHECKED = """
CREATE TABLE checked (id INTEGER PRIMARY KEY, account VARCHAR(20),
lock_mark VARCHAR(9) DEFAULT 'Unlock', lock_reason VARCHAR(9),
read_lock_count INTEGER DEFAULT 0,
CONSTRAINT few_readers CHECK (read_lock_count < 1))
"""


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb", "mysql"])
async def test_texts_stay_texts(name: str, request: pytest.FixtureRequest) -> None:
    """Reasons and keys are bound, whatever is in them."""
    site: LocksSite = request.getfixturevalue(name)
    wide = " CHARACTER SET utf8mb4" if name in {"mariadb", "mysql"} else ""
    site.plain.run(
        f"CREATE TABLE odd (id VARCHAR(100){wide} PRIMARY KEY,"
        " lock_mark VARCHAR(9) DEFAULT 'Unlock', read_lock_count INTEGER DEFAULT 0,"
        f" lock_reason VARCHAR(200){wide})"
    )
    site.plain.run("INSERT INTO odd (id) VALUES ({})", NASTY)
    async with connect(site.url) as locks:
        lock = locks.row_lock("odd", NASTY)
        for mode in MODES:
            async with ask(lock, mode)(NASTY):
                assert (await lock.look()).reason == NASTY
        assert str((await lock.look()).mark) == "Unlock"


@pytest.mark.parametrize(
    "names",
    [
        {"table": "invoices; DROP TABLE invoices"},
        {"table": 'invoices" --'},
        {"table": "a.b.c"},
        {"table": ""},
        {"table": ".invoices"},
        {"table": 7},
        {"table": "t" * 64},
        {"key": "1=1 OR id"},
        {"key": "lock_mark"},
        {"mark": "lock mark"},
        {"count": "read_lock_count`"},
        {"reason": None},
        {"row_id": True},
        {"row_id": 1.0},
        {"row_id": 2**64},
        {"row_id": -(2**63) - 1},
        {"row_id": 10**5000},
        {"row_id": ""},
        {"row_id": "a\0b"},
        {"row_id": "\ud800"},
    ],
)
async def test_names_that_cannot_be(sqlite: LocksSite, names: dict[str, Any]) -> None:
    """Refused before anything is sent."""
    async with connect(sqlite.url) as locks:
        with pytest.raises(ConfigurationError):
            locks.row_lock(**{"table": "invoices", "row_id": 1, **names})


@pytest.mark.parametrize("reason", [None, 7, "a\0b", "\ud800", "x" * 1001])
async def test_reasons_that_cannot_be(sqlite: LocksSite, reason: Any) -> None:  # noqa: ANN401
    async with opened(sqlite) as lock_of:
        for mode in MODES:
            with pytest.raises(ConfigurationError):
                await ask(lock_of(1), mode)(reason)
        with pytest.raises(ConfigurationError):
            await lock_of(1).try_read(reason)
        held = await lock_of(1).read()
        if reason is not None:
            with pytest.raises(ConfigurationError):
                await held.release(reason)
            assert sqlite.plain.state() == LOCKED["read"]
        await held.release()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
async def test_timeouts_that_cannot_be(sqlite: LocksSite, timeout: Any) -> None:  # noqa: ANN401
    async with opened(sqlite) as lock_of:
        with pytest.raises(ConfigurationError):
            await lock_of(1).read(timeout=timeout)


async def test_names_of_ones_own(postgresql: LocksSite) -> None:
    """A schema, a key that is a UUID, other columns, an enumerated mark."""
    plain, key = postgresql.plain, UUID(int=7)
    plain.run("CREATE SCHEMA billing")
    plain.run("CREATE TYPE billing.mark AS ENUM ('Unlock', 'ReadLock', 'WriteLock')")
    plain.run(
        'CREATE TABLE billing.bills (uid uuid PRIMARY KEY, "Mark" billing.mark'
        " DEFAULT 'Unlock', readers smallint DEFAULT 0, why char(20))"
    )
    plain.run("INSERT INTO billing.bills (uid) VALUES ({})", str(key))
    async with connect(postgresql.url) as locks:
        lock = locks.row_lock(
            *("billing.bills", key),
            key="uid",
            mark="Mark",
            count="readers",
            reason="why",
        )
        async with lock.read("one"):
            state = await lock.look()
            assert (state.mark, state.readers) == ("ReadLock", 1)
            assert str(state) == f"ReadLock by 1: {'one':20}"
        async with lock.write():
            assert (await lock.look()).mark == "WriteLock"
        assert (await lock.look()).mark == "Unlock"


async def test_a_key_of_another_type(postgresql: LocksSite) -> None:
    async with opened(postgresql) as lock_of:
        for key in ("one", "1", 2**70):
            with pytest.raises(ConfigurationError):
                await lock_of(key).read()  # type: ignore[arg-type]
        async with lock_of(1).read():
            pass
    assert postgresql.plain.state() == FREE


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb", "mysql"])
async def test_a_constraint_of_the_table(
    name: str, request: pytest.FixtureRequest
) -> None:
    """What else is in the row is nobody's business."""
    site: LocksSite = request.getfixturevalue(name)
    site.plain.run(CHECKED)
    site.plain.run("INSERT INTO checked (id, account) VALUES (1, 'iban DE89')")
    async with connect(site.url) as locks:
        with pytest.raises(ConfigurationError, match="few_readers") as caught:
            await locks.row_lock("checked", 1).read()
        assert "iban" not in str(caught.value)
        assert "constraint" in caught.value.hint
        async with locks.row_lock("checked", 1).write():
            pass


async def test_a_key_that_is_too_large_for_sqlite(sqlite: LocksSite) -> None:
    async with connect(sqlite.url) as locks:
        with pytest.raises(ConfigurationError, match="too large"):
            await locks.row_lock("invoices", 2**63).read()
        async with locks.row_lock("invoices", 1).read():
            pass


async def test_a_right_that_is_missing(postgresql: LocksSite) -> None:
    name = postgresql.url.rpartition("/")[2]
    role = f"clerk_{name}"
    plain = postgresql.plain
    plain.run(f"CREATE ROLE {role} LOGIN")
    try:
        rights = "SELECT, INSERT, UPDATE, DELETE"
        plain.run(f"GRANT {rights} ON mutex_locks, doormans TO {role}")
        plain.run(f"GRANT SELECT ON invoices TO {role}")
        before, _, after = postgresql.url.partition("://")
        url = f"{before}://{role}@{after.rpartition('@')[2]}"
        async with connect(url) as locks:
            lock = locks.row_lock("invoices", 1)
            with pytest.raises(Unsupported) as caught:
                await lock.write()
            assert caught.value.hint == 'GRANT SELECT, UPDATE ON "invoices" TO …'
            columns = "lock_mark, read_lock_count, lock_reason"
            plain.run(f"GRANT UPDATE ({columns}) ON invoices TO {role}")
            async with lock.write():
                pass
    finally:
        with psycopg.connect(postgresql.url, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
async def test_a_right_that_is_missing_on_mariadb(
    name: str, request: pytest.FixtureRequest
) -> None:
    mariadb: LocksSite = request.getfixturevalue(name)
    database = mariadb.url.rpartition("/")[2]
    user = f"clerk_{database[-12:]}"
    rights = "SELECT, INSERT, UPDATE, DELETE"
    run(
        mariadb.url,
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        *(f"GRANT {rights} ON {t} TO {user}" for t in ("mutex_locks", "doormans")),
        f"GRANT SELECT ON invoices TO {user}",
    )
    try:
        url = mariadb.url.replace("root@", f"{user}:secret@")
        async with connect(url) as locks:
            with pytest.raises(Unsupported) as caught:
                await locks.row_lock("invoices", 1).write()
            assert caught.value.hint == "GRANT SELECT, UPDATE ON `invoices` TO …"
    finally:
        run(mariadb.url, f"DROP USER {user}")


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db?rows={tmp_path}/nowhere.db"
    async with connect(url) as locks:
        with pytest.raises(ConfigurationError, match=r"nowhere\.db"):
            await locks.row_lock("invoices", 1).read()
    assert not (tmp_path / "nowhere.db").exists()


async def test_other_stores_have_none() -> None:
    async with connect("memory://") as locks:
        with pytest.raises(Unsupported, match="cannot hold one"):
            locks.row_lock("invoices", 1)
