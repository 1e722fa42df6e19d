"""Bad input: each a typed error that says what to do."""

from __future__ import annotations

import socket

import anyio
import pytest

from aiorwlock_remote import BackendError, BackendUnavailable, Unsupported, connect
from aiorwlock_remote.backends.mariadb.dialect import MARIADB, MariadbDialect
from aiorwlock_remote.backends.mariadb.executor import check_version
from aiorwlock_remote.backends.mariadb.schema import statements_of
from tests.servers.mariadb import OWNER, MariadbServer, run
from tests.servers.process import IP, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]
NAME = "varchar(512) CHARACTER SET utf8mb4 COLLATE utf8mb4"
SHORT = NAME.replace("512", "200") + "_nopad_bin NOT NULL"
one_loop = pytest.mark.only_on("asyncio", "what the server says is the same on both")


async def refused(url: str, error: type[Exception], *told: str) -> str:
    with pytest.raises(error) as caught:
        async with connect(url, connect_timeout=2):
            pass
    for text in told:
        assert text in str(caught.value)
    return str(caught.value)


async def locks_at(url: str) -> None:
    async with connect(url) as locks, locks.mutex("order", 1) as held:
        assert held.fence > 0


async def mended(url: str, said: str, error: str) -> None:
    """The statement that the error names makes it good."""
    statement = said.partition(error)[2]
    assert statement.startswith("ALTER TABLE"), said
    run(url, statement)
    await locks_at(url)


async def test_a_session_that_cannot_be_set_up_is_left(
    mariadb_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logged in, and refused or cut off before it is of any use."""
    unfit = ("SET SESSION sql_mode = 'NONE SUCH'",)
    monkeypatch.setattr(MariadbDialect, "session", lambda *_: unfit)
    await refused(mariadb_tables, BackendError, "NONE SUCH")
    ours = (
        "SELECT id FROM information_schema.processlist"
        " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    )
    with anyio.fail_after(10):
        while run(mariadb_tables, ours):  # noqa: ASYNC110 - the server tells nobody
            await anyio.sleep(0.01)


async def test_no_tables(mariadb_empty: str) -> None:
    await refused(
        mariadb_empty, Unsupported, "mutex_locks", "rwlock schema mariadb prints"
    )


@one_loop
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("doormans DROP COLUMN version", "doormans has no column version"),
        (f"mutex_locks MODIFY resource_type {SHORT}, ENGINE = MyISAM", "is MyISAM"),
        ("doormans ENGINE = Aria", "doormans is Aria"),
        ("mutex_locks DROP PRIMARY KEY", "several rows for one resource"),
        (
            "mutex_locks DROP PRIMARY KEY, ADD UNIQUE (resource_type(9), resource_id)",
            "several rows for one resource",
        ),
        (
            f"mutex_locks MODIFY resource_type {NAME}_general_ci NOT NULL",
            "utf8mb4_general_ci",
        ),
        (
            f"doormans MODIFY resource_type {NAME}_bin NOT NULL",
            "utf8mb4_bin",
        ),
        ("mutex_locks MODIFY acquired_at datetime NOT NULL", "no microseconds"),
        ("doormans MODIFY created_at datetime(3) NOT NULL", "no microseconds"),
    ],
)
async def test_tables_that_are_not_fit(
    mariadb_tables: str, harm: str, says: str
) -> None:
    run(mariadb_tables, f"ALTER TABLE {harm}")
    said = await refused(mariadb_tables, Unsupported, says)
    await mended(mariadb_tables, said, "; ")


@one_loop
@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("mutex_locks MODIFY resource_id", "bigint"),
        ("mutex_locks MODIFY acquired_at", "timestamp(6)"),
        ("doormans MODIFY record", "blob"),
    ],
)
async def test_a_column_of_another_type(
    mariadb_tables: str, column: str, kind: str
) -> None:
    run(mariadb_tables, f"ALTER TABLE {column} {kind}")
    table, _, name = column.split()
    what = f"{table}.{name} is {kind.partition('(')[0]}"
    await refused(mariadb_tables, Unsupported, what, "rwlock schema mariadb")


@one_loop
async def test_a_column_that_we_know_nothing_of(mariadb_tables: str) -> None:
    run(mariadb_tables, "ALTER TABLE mutex_locks ADD COLUMN owner varchar(9) NOT NULL")
    with pytest.raises(Unsupported, match="owner"):
        await locks_at(mariadb_tables)
    run(mariadb_tables, "ALTER TABLE mutex_locks MODIFY owner varchar(9)")
    await locks_at(mariadb_tables)


@one_loop
async def test_no_such_database(mariadb_empty: str) -> None:
    await refused(f"{mariadb_empty}x", Unsupported, "Unknown database")


@one_loop
async def test_no_such_user(mariadb_empty: str) -> None:
    url = mariadb_empty.replace("root@", "nobody:wröng@")
    said = await refused(url, Unsupported, "Access denied", "mariadb://user:password@")
    assert "wröng" not in said


async def test_the_least_rights(mariadb_empty: str) -> None:
    """Those that ``rwlock schema mariadb --user`` gives are enough."""
    name = mariadb_empty.rpartition("/")[2]
    user = f"u_{name[2:]}"
    run(mariadb_empty, f"CREATE USER {user}@'%' IDENTIFIED BY 'pässword'")
    try:
        url = mariadb_empty.replace("root@", f"{user}:p%C3%A4ssword@")
        *tables, locks, doormans = statements_of(name, user)
        run(mariadb_empty, *tables)
        await refused(url, Unsupported, "Access denied")
        run(mariadb_empty, f"GRANT SELECT ON {name}.* TO {user}@'%'")
        with pytest.raises(Unsupported, match="GRANT SELECT, INSERT"):
            await locks_at(url)
        run(mariadb_empty, f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {user}@'%'")
        run(mariadb_empty, locks, doormans)
        await locks_at(url)
    finally:
        run(mariadb_empty, f"DROP USER {user}@'%'")


async def test_by_its_socket(
    mariadb_tables: str, mariadb_server: MariadbServer
) -> None:
    name = mariadb_tables.rpartition("/")[2]
    await locks_at(f"mysql://{OWNER}@/{name}?socket={mariadb_server.socket}")


@one_loop
@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ("10.11.19-MariaDB-0+deb12u1", True),
        ("10.6.2-MariaDB", True),
        ("11.8.3-MariaDB-ubu2404", True),
        ("10.5.29-MariaDB", False),
        ("8.0.40", False),
        ("8.4.3-Percona", False),
        ("?", False),
    ],
)
async def test_versions(version: str, fit: bool) -> None:
    if fit:
        check_version(MARIADB, version, "db")
        return
    with pytest.raises(Unsupported, match=r"MariaDB 10\.6 or later"):
        check_version(MARIADB, version, "db")


async def test_nobody_listens() -> None:
    await refused(f"mariadb://me@{IP}:{free_port()}/app", BackendUnavailable)


async def test_silence_ends_in_time() -> None:
    with socket.create_server((IP, 0)) as silent:
        url = f"mariadb://me@{IP}:{silent.getsockname()[1]}/app"
        await refused(url, BackendUnavailable)


@one_loop
async def test_what_the_doctor_finds(mariadb_tables: str) -> None:
    async with connect(mariadb_tables) as locks:
        found = {finding.name: finding async for finding in locks.examine()}
    assert "MariaDB" in found["server"].value
    assert found["innodb_flush_log_at_trx_commit"].rating == "note"  # of this one
    assert found["clock"].rating == "good"
    assert "role" not in found
