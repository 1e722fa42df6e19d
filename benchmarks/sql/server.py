"""Servers of our own, by the fixtures of the tests, and SQLite's files.

A Redis passes the hints of who is woken over another store.

Commits are durable, as users have them: ``fsync``, ``synchronous_commit`` and
``full_page_writes`` are on, and ``innodb_flush_log_at_trx_commit`` is 1.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.redis.server import server as redis_server
from benchmarks.sql.adapters import (
    MARIADB,
    MARIADB_WOKEN,
    MYSQL,
    SQLITE,
    by_asyncpg,
    rows,
)
from tests.servers import fix_mariadb
from tests.servers.fix_postgresql import make_tables
from tests.servers.mariadb import Mariadb
from tests.servers.mariadb import run as ask_mariadb
from tests.servers.mysql import Mysql
from tests.servers.plain_rows import TABLE as INVOICES
from tests.servers.postgresql import Postgresql

DATABASE = "bench"
CONFIG = {
    "autovacuum": "on",
    "deadlock_timeout": "1s",
    "shared_buffers": "128MB",
    "log_line_prefix": "%d|",
}
"""The server's defaults, where the tests change them; the prefix names the database."""
RELOAD_SECONDS = 0.3
"""Seconds until every session knows a new setting."""
_STATEMENT = re.compile(rf"^{DATABASE}\|LOG:  (?:execute|statement)", re.MULTILINE)


class Server:
    """The running servers, with the tables of the locks."""

    def __init__(
        self,
        postgresql: Postgresql,
        mariadb: Mariadb,
        mysql: Mysql,
        folder: Path,
        wake: str,
    ) -> None:
        self._wake = wake
        self._mariadb = f"{mariadb.root}{DATABASE}"
        self._mysql = f"{mysql.root}{DATABASE}"
        for started in (mariadb, mysql):
            ask_mariadb(started.root, f"CREATE DATABASE {DATABASE}")
            fix_mariadb.make_tables(f"{started.root}{DATABASE}")
        self._log = postgresql.folder / postgresql.log_name
        self._folder = folder
        self._admin = psycopg.connect(postgresql.url, autocommit=True)
        self._admin.execute(f"CREATE DATABASE {DATABASE}")
        self._url = postgresql.url.rpartition("/")[0] + f"/{DATABASE}"
        make_tables(self._url)
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(by_asyncpg.NOTIFY_TABLE)
            for statement in (INVOICES, rows.FILL):
                connection.execute(statement)
                ask_mariadb(self._mariadb, statement)
                ask_mariadb(self._mysql, statement)

    def url_for(self, peer: str, seed: int) -> str:
        """Return the URL at which a peer finds its locks in this round."""
        if peer in MARIADB:
            return self._mariadb
        if peer == MARIADB_WOKEN:
            return f"{self._mariadb}?wake={self._wake}"
        if peer in MYSQL:
            return self._mysql
        if peer not in SQLITE:
            return self._url
        folder = self._folder / str(seed)
        folder.mkdir(exist_ok=True)
        return f"sqlite:///{folder}/locks.db"

    def empty(self) -> None:
        """Remove all locks from the servers; SQLite has new files in each round."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("TRUNCATE mutex_locks, doormans")
            connection.execute("CHECKPOINT")
        for table in ("mutex_locks", "doormans"):
            ask_mariadb(self._mariadb, f"TRUNCATE {table}")
            ask_mariadb(self._mysql, f"TRUNCATE {table}")

    def about(self) -> dict[str, object]:
        """Return versions, and the settings on which the cost of a commit depends."""
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
        about = {name: self._one(f"SHOW {name}") for name in names}
        ((version, flush),) = ask_mariadb(
            self._mariadb, "SELECT version(), @@innodb_flush_log_at_trx_commit"
        )
        ((mysql, mysql_flush),) = ask_mariadb(
            self._mysql, "SELECT version(), @@innodb_flush_log_at_trx_commit"
        )
        assert flush == mysql_flush
        return about | {
            "mariadb": version,
            "mysql": mysql,
            "innodb_flush_log_at_trx_commit": flush,
        }

    def process_ids(self) -> list[int]:
        """Return nothing: this server's CPU time is not measured."""
        return []

    def connections(self) -> int:
        """Return how many connections clients have to the databases of the locks."""
        found = self._one(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = %s AND backend_type = 'client backend'",
            DATABASE,
        )
        for url in (self._mariadb, self._mysql):
            ((there,),) = ask_mariadb(
                url,
                "SELECT count(*) - 1 FROM information_schema.processlist"
                " WHERE db = database()",
            )
            found += int(there)
        return int(found)

    def statements(self, peer: str, seconds: float) -> int:
        """Return how many arrive in that time, by the log or the server's count."""
        if peer in (*MARIADB, *MYSQL):
            url = self._mysql if peer in MYSQL else self._mariadb
            before = _questions(url)
            time.sleep(seconds)
            # The second reading of the count is a statement itself.
            return _questions(url) - before - 1
        before = self._log.stat().st_size
        self._set("SET log_statement = 'all'")
        time.sleep(RELOAD_SECONDS + seconds)
        self._set("RESET log_statement")
        with self._log.open("rb") as log:
            log.seek(before)
            return len(_STATEMENT.findall(log.read().decode()))

    def close(self) -> None:
        """Close our own connection."""
        self._admin.close()

    def _set(self, what: str) -> None:
        self._admin.execute(f"ALTER SYSTEM {what}")
        self._one("SELECT pg_reload_conf()")

    def _one(self, statement: str, *values: object) -> Any:  # noqa: ANN401 - any column
        row = self._admin.execute(statement, values).fetchone()
        assert row is not None
        return row[0]


def _questions(url: str) -> int:
    ((_, count),) = ask_mariadb(url, "SHOW GLOBAL STATUS LIKE 'Questions'")
    return int(count)


@contextmanager
def server(folder: Path, options: Namespace) -> Iterator[Server]:
    """Start the servers, and end them after the block."""
    del options
    with tempfile.TemporaryDirectory(dir=folder) as name, ExitStack() as stack:
        own = Path(name)
        for part in ("postgresql", "mariadb", "mysql"):
            (own / part).mkdir()
        try:
            postgresql = Postgresql(own / "postgresql", CONFIG)
            stack.callback(postgresql.close)
            mariadb = Mariadb(own / "mariadb")
            stack.callback(mariadb.close)
            mysql = Mysql(own / "mysql")
            stack.callback(mysql.close)
        except pytest.fail.Exception as exc:
            sys.exit(str(exc))  # says what is to be installed
        redis = stack.enter_context(redis_server())
        running = Server(postgresql, mariadb, mysql, own, redis.url)
        stack.callback(running.close)
        yield running
