"""Bad input: each a typed error that says what to do."""

from __future__ import annotations

import socket

import anyio
import pytest

from aiorwlock_remote import BackendError, BackendUnavailable, Unsupported, connect
from aiorwlock_remote.backends.mariadb.dialect import (
    MARIADB,
    MYSQL,
    ServerDialect,
    product_of,
)
from aiorwlock_remote.backends.mariadb.schema import statements_of
from tests.backends.mariadb.pools import pool_of
from tests.backends.mariadb.products import (
    MARIADB_PRODUCT,
    MYSQL_PRODUCT,
    Product,
    sessions,
)
from tests.servers.mariadb import OWNER, MariadbServer, run
from tests.servers.process import IP, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]
NAME = "varchar(512) CHARACTER SET utf8mb4 COLLATE utf8mb4"
SHORT = "varchar(200) CHARACTER SET utf8mb4 COLLATE {exact} NOT NULL"
one_loop = pytest.mark.only_on("asyncio", "what the server says is the same on both")


async def refused(url: str, error: type[Exception], *expected: str) -> str:
    with pytest.raises(error) as caught:
        async with connect(url, connect_timeout=2):
            pass
    for text in expected:
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
    db_tables: str, product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logged in, and refused or cut off before it is of any use."""
    unfit = ("SET SESSION sql_mode = 'NONE SUCH'",)
    monkeypatch.setattr(type(product.dialect), "session", lambda *_: unfit)
    await refused(db_tables, BackendError, "NONE SUCH")
    with anyio.fail_after(10):
        while sessions(db_tables):  # noqa: ASYNC110 - the server tells nobody
            await anyio.sleep(0.01)


async def test_no_tables(db_empty: str, product: Product) -> None:
    prints = f"rwlock schema {product.scheme} prints"
    await refused(db_empty, Unsupported, "mutex_locks", prints)


@one_loop
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("doormans DROP COLUMN version", "doormans has no column version"),
        (f"mutex_locks MODIFY resource_type {SHORT}, ENGINE = MyISAM", "is MyISAM"),
        (
            f"doormans MODIFY resource_type {SHORT}, ENGINE = {{engine}}",
            "doormans is {engine}",
        ),
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
        (
            "mutex_locks MODIFY ticket varchar(512) CHARACTER SET latin1 NOT NULL",
            "latin1_swedish_ci",
        ),
        ("mutex_locks MODIFY acquired_at datetime NOT NULL", "no microseconds"),
        ("doormans MODIFY created_at datetime(3) NOT NULL", "no microseconds"),
    ],
)
async def test_tables_that_are_not_fit(
    db_tables: str, product: Product, harm: str, says: str
) -> None:
    words = {"exact": product.dialect.collation, "engine": product.without_rows}
    run(db_tables, f"ALTER TABLE {harm.format(**words)}")
    said = await refused(db_tables, Unsupported, says.format(**words))
    await mended(db_tables, said, "; ")


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
    db_tables: str, product: Product, column: str, kind: str
) -> None:
    run(db_tables, f"ALTER TABLE {column} {kind}")
    table, _, name = column.split()
    what = f"{table}.{name} is {kind.partition('(')[0]}"
    await refused(db_tables, Unsupported, what, f"rwlock schema {product.scheme}")


@one_loop
async def test_a_column_that_we_know_nothing_of(db_tables: str) -> None:
    run(db_tables, "ALTER TABLE mutex_locks ADD COLUMN owner varchar(9) NOT NULL")
    with pytest.raises(Unsupported, match="owner"):
        await locks_at(db_tables)
    run(db_tables, "ALTER TABLE mutex_locks MODIFY owner varchar(9)")
    await locks_at(db_tables)


@one_loop
async def test_no_such_database(db_empty: str) -> None:
    await refused(f"{db_empty}x", Unsupported, "Unknown database")


@one_loop
async def test_no_such_user(db_empty: str, product: Product) -> None:
    url = db_empty.replace("root@", "nobody:wröng@")
    example = f"{product.scheme}://user:password@"
    said = await refused(url, Unsupported, "Access denied", example)
    assert "wröng" not in said


async def test_the_least_rights(db_empty: str, product: Product) -> None:
    """Those that ``rwlock schema … --user`` gives are enough."""
    name = db_empty.rpartition("/")[2]
    user = f"u_{name[2:]}"
    run(db_empty, f"CREATE USER {user}@'%' IDENTIFIED BY 'pässword'")
    try:
        url = db_empty.replace("root@", f"{user}:p%C3%A4ssword@")
        *tables, locks, doormans = statements_of(product.dialect, name, user)
        run(db_empty, *tables)
        await refused(url, Unsupported, "Access denied")
        run(db_empty, f"GRANT SELECT ON {name}.* TO {user}@'%'")
        with pytest.raises(Unsupported, match="GRANT SELECT, INSERT"):
            await locks_at(url)
        run(db_empty, f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {user}@'%'")
        run(db_empty, locks, doormans)
        await locks_at(url)
    finally:
        run(db_empty, f"DROP USER {user}@'%'")


async def test_by_its_socket(
    db_tables: str, product: Product, db_server: MariadbServer
) -> None:
    name = db_tables.rpartition("/")[2]
    await locks_at(f"{product.scheme}://{OWNER}@/{name}?socket={db_server.socket}")


@one_loop
@pytest.mark.parametrize(
    ("dialect", "version"),
    [
        (MARIADB, "10.11.19-MariaDB-0+deb12u1"),
        (MARIADB, "10.6.2-MariaDB"),
        (MARIADB, "11.8.3-MariaDB-ubu2404"),
        (MYSQL, "9.7.4-2"),
        (MYSQL, "8.4.3-Percona"),
        (MYSQL, "8.0.17"),
        (MYSQL, "26.1"),
    ],
)
async def test_supported_versions(dialect: ServerDialect, version: str) -> None:
    dialect.check_version(version, "db")


@one_loop
@pytest.mark.parametrize(
    ("dialect", "version", "hint"),
    [
        (MARIADB, "10.5.29-MariaDB", ""),
        (MARIADB, "8.0.40", "; this is MySQL: use mysql://, or MysqlBackend"),
        (MARIADB, "9.7.4-2", "; this is MySQL: use mysql://, or MysqlBackend"),
        (MARIADB, "?", "; this is MySQL: use mysql://, or MysqlBackend"),
        (MYSQL, "8.0.16", ""),
        (MYSQL, "5.7.44-log", ""),
        (MYSQL, "?", ""),
        (MYSQL, "8.0.11-TiDB-v8.5.0", ""),
        (
            MYSQL,
            "11.8.3-MariaDB",
            "; this is MariaDB: use mariadb://, or MariadbBackend",
        ),
    ],
)
async def test_versions_that_are_refused(
    dialect: ServerDialect, version: str, hint: str
) -> None:
    least = "MariaDB 10.6" if dialect is MARIADB else "MySQL 8.0.17"
    with pytest.raises(Unsupported) as caught:
        dialect.check_version(version, "db")
    message = f"db: version {version}; {least} or later is needed{hint}"
    assert str(caught.value) == message


@one_loop
async def test_a_server_of_the_other_product(db_tables: str, product: Product) -> None:
    """Named, although each lacks a variable that sessions of the other are given."""
    other = MARIADB_PRODUCT if product is MYSQL_PRODUCT else MYSQL_PRODUCT
    wrong = db_tables.replace(product.scheme, other.scheme, 1)
    hint = f"this is {product.dialect.name}: use {product.scheme}://"
    await refused(wrong, Unsupported, hint)
    async with pool_of(db_tables) as backend:
        pool = backend._pool._pool  # type: ignore[attr-defined]
        with pytest.raises(Unsupported, match=hint):
            async with connect(other.backend(pool)):
                pass


async def test_a_server_that_cannot_be_reached() -> None:
    await refused(f"mysql://me@{IP}:{free_port()}/app", BackendUnavailable)


async def test_silence_ends_in_time() -> None:
    with socket.create_server((IP, 0)) as silent:
        url = f"mysql://me@{IP}:{silent.getsockname()[1]}/app"
        await refused(url, BackendUnavailable)


@one_loop
async def test_the_findings_of_doctor(db_tables: str, product: Product) -> None:
    async with connect(db_tables) as locks:
        found = {finding.name: finding async for finding in locks.examine()}
    version = found["server"].value
    assert product.dialect.name == product_of(version)
    assert found["innodb_flush_log_at_trx_commit"].rating == "note"  # of this one
    assert found["clock"].rating == "good"
    assert found["autocommit"].value == "on in new sessions"
    assert "role" not in found
