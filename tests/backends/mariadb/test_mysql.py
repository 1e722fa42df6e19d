"""What MySQL has and MariaDB has not: logins, time limits, groups."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from aiorwlock_remote import BackendUnavailable, LockError, Unsupported, connect
from aiorwlock_remote.backends.mariadb.dialect import MARIADB, MYSQL, ServerDialect
from aiorwlock_remote.backends.mariadb.driver import run as ask
from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.core.commands import Granted, Release, Released
from tests.backends.mariadb.conftest import speaking_tls
from tests.backends.mariadb.pools import STRICT, pool_of
from tests.backends.mariadb.products import waiting
from tests.backends.redis.connections import eventually
from tests.cas.tables import ORDER, acquire, opened
from tests.recipes.fix_rows import mariadb_site
from tests.recipes.row_sites import FREE
from tests.servers.certificates import Certificates
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import MariadbServer, connected, run
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

TICKETS = "SELECT ticket FROM mutex_locks"
TOUCH = "UPDATE doormans SET updated_at = UTC_TIMESTAMP(6)"
CHANGE = "UPDATE invoices SET total = total + 1 WHERE id = 1"
LIMIT = "SELECT @@innodb_lock_wait_timeout"
WAITING = "SET STATEMENT innodb_lock_wait_timeout"


async def locks_at(url: str) -> None:
    async with connect(url) as locks, locks.mutex("order", 1) as held:
        assert held.fence > 0


async def test_a_login_by_password(
    start_mysql: StartMariadb, files: Certificates
) -> None:
    """By ``caching_sha2_password``: the first one is another than those after it."""
    server = start_mysql(config=speaking_tls(files))
    run(
        server.root,
        "CREATE USER clerk IDENTIFIED WITH caching_sha2_password BY 'pässword'",
        "GRANT ALL ON app.* TO clerk",
    )
    base = f"mysql://clerk:p%C3%A4ssword@localhost:{server.port}/app"
    for more in ("", f"?tls=yes&ca_file={files.authority}", f"?socket={server.socket}"):
        run(server.root, "FLUSH PRIVILEGES")  # it forgets whom it has let in
        for _ in range(2):
            await locks_at(base + more)
    run(server.root, "SET GLOBAL require_secure_transport = ON")
    with pytest.raises(Unsupported, match="secure transport") as refused:
        await locks_at(base)
    assert "tls=yes" in str(refused.value)


async def test_a_pool_gets_its_session_back_as_it_was(mysql_tables: str) -> None:
    begin = f"{STRICT}; SET SESSION innodb_lock_wait_timeout = 7"
    with mariadb_site(mysql_tables) as site:
        async with (
            pool_of(mysql_tables, most=1, init_command=begin, patience=4) as backend,
            connect(backend) as locks,
        ):
            pool = backend._pool._pool  # type: ignore[attr-defined]

            async def limit() -> object:
                async with pool.acquire() as connection:
                    return (await ask(connection, LIMIT))[0].rows

            lock = locks.row_lock("invoices", 1)
            async with lock.write():
                pass
            assert await limit() == [(7,)]
            site.plain.begin(CHANGE)
            started = time.monotonic()
            with pytest.raises(BackendUnavailable, match="Lock wait") as refused:
                await lock.write(timeout=0)
            assert refused.value.nothing_done
            assert time.monotonic() - started < 7
            assert await limit() == [(7,)]
            site.plain.commit()


async def test_the_outcome_of_a_timed_out_step_is_found(mysql_tables: str) -> None:
    """It waited for a row for longer than we for the answer; then it must do nothing,
    or be known to have been done.
    """
    async with opened(f"{mysql_tables}?call_timeout=0.5") as store:
        assert isinstance(await store.step(ORDER, acquire("t1")), Granted)
        with connected(mysql_tables, autocommit=False) as foreign:
            foreign.query(TOUCH)
            with pytest.raises(BackendUnavailable):
                await store.step(ORDER, Release("t1"))
            assert waiting(mysql_tables)
        reply = await store.step(ORDER, Release("t1"))
        assert isinstance(reply, Released)
        assert run(mysql_tables, TICKETS) == []
        assert isinstance(await store.step(ORDER, acquire("t2")), Granted)
        assert run(mysql_tables, TICKETS) == [("t2",)]


async def test_a_row_lock_that_was_given_up(mysql_tables: str) -> None:
    """The server gives it up as well, a second after it was asked."""
    with mariadb_site(mysql_tables) as site:
        async with connect(f"{mysql_tables}?call_timeout=1") as locks:
            site.plain.begin(CHANGE)
            with suppress(LockError):
                await locks.row_lock("invoices", 1).write(timeout=0)
            await eventually(lambda: not waiting(mysql_tables), "nobody waits for it")
            site.plain.commit()
            assert site.plain.state() == FREE
            async with locks.row_lock("invoices", 1).write():
                pass


async def test_a_table_needs_a_primary_key(mysql_empty: str) -> None:
    begin = f"{STRICT}; SET SESSION sql_require_primary_key = ON"
    async with pool_of(mysql_empty, init_command=begin) as backend:
        await backend.create_schema()
        async with connect(backend) as locks, locks.mutex("order", 1) as held:
            assert held.fence > 0


async def test_a_server_that_is_read_only(start_mysql: StartMariadb) -> None:
    server = start_mysql()
    run(server.root, "SET GLOBAL super_read_only = ON")
    async with connect(server.url) as locks:
        found = {finding.name: finding async for finding in locks.examine()}
        assert found["role"].rating == "bad"
        with pytest.raises(BackendUnavailable, match="super-read-only") as refused:
            await locks.mutex("order", 1).acquire(timeout=0)
        assert refused.value.nothing_done
        run(server.root, "SET GLOBAL read_only = OFF")
        async with locks.mutex("order", 1):
            pass


@pytest.mark.usefixtures("renewed_often")
async def test_a_server_that_became_read_only_is_left(
    start_mysql: StartMariadb,
) -> None:
    """What leads to the new primary need not end the connections to the old one.

    The lock is kept: its renewals go to the new primary as well.
    """
    server = start_mysql()
    with Proxy(server.port) as router:
        url = server.url.replace(str(server.port), str(router.port))
        async with connect(url) as locks:
            held = await locks.mutex("order", 1, lease=30).acquire()
            before = router.connections
            run(server.root, "SET GLOBAL super_read_only = ON")
            with pytest.raises(BackendUnavailable, match="super-read-only"):
                await locks.mutex("order", 2).acquire(timeout=0)
            await eventually(
                lambda: router.connections > before, "the keeper logs in again"
            )
            run(server.root, "SET GLOBAL read_only = OFF")
            left = held.expires_in
            assert left is not None
            await eventually(lambda: (held.expires_in or 0) > left, "it is renewed")
            before = router.connections
            async with locks.mutex("order", 2):
                assert router.connections > before
            assert await held.release()


@pytest.mark.parametrize(("single", "mode"), [("ON", "single"), ("OFF", "multi")])
async def test_a_group(
    mysql_tables: str, monkeypatch: pytest.MonkeyPatch, single: str, mode: str
) -> None:
    """As a member of one would say."""
    asked = MariadbExecutor.server

    async def of_group(self: MariadbExecutor) -> dict[str, str]:
        return await asked(self) | {
            "group_replication_group_name": "aaaaaaaa-0000",
            "group_replication_single_primary_mode": single,
        }

    monkeypatch.setattr(MariadbExecutor, "server", of_group)
    async with connect(mysql_tables) as locks:
        found = {finding.name: finding async for finding in locks.examine()}
    assert found["cluster"].value == f"group, {mode}-primary"
    assert found["cluster"].rating == "note"


async def test_a_session_that_waits_for_nobody(mysql_server: MariadbServer) -> None:
    """What the others here look for is there while somebody waits, and then no more."""
    with mysql_server.database("t_waits") as url:
        run(
            url,
            "CREATE TABLE one (n integer PRIMARY KEY)",
            "INSERT INTO one VALUES (1)",
        )
        change = "UPDATE one SET n = 2"
        with connected(url, autocommit=False) as first:
            first.query("SELECT n FROM one FOR UPDATE")
            assert waiting(url) == []
            second = asyncio.create_task(asyncio.to_thread(run, url, change))
            await eventually(lambda: len(waiting(url)) == 1, "one waits")
            first.rollback()
            await second
        assert waiting(url) == []


@pytest.mark.parametrize(
    ("dialect", "seconds", "statements"),
    [
        (
            MARIADB,
            0,
            (f"{WAITING} = 0 FOR UPDATE x",),
        ),
        (
            MARIADB,
            0.25,
            (f"{WAITING} = 1, max_statement_time = 0.25 FOR UPDATE x",),
        ),
        (MYSQL, 0, ("SELECT 1 FROM x FOR UPDATE NOWAIT", "UPDATE x")),
        (
            MYSQL,
            0.25,
            (
                "SELECT /*+ MAX_EXECUTION_TIME(250) */ 1 FROM x FOR UPDATE",
                "UPDATE x",
            ),
        ),
    ],
)
async def test_the_limit_of_a_renewal(
    dialect: ServerDialect, seconds: float, statements: tuple[str, ...]
) -> None:
    lock = "SELECT 1 FROM x FOR UPDATE"
    assert dialect.limit_lock_wait("UPDATE x", lock, seconds) == statements
