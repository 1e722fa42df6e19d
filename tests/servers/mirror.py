"""The Mirror of PyPI's ``seerdb``: other people's server of Oracle's wire.

Like the double it has PostgreSQL do the work, but its author knew nothing of us: what
runs on both leans on the mistakes of neither. It is a preview, and not made for locks:
what it lacks for our statements is added by ``mirror_additions``, what it lacks besides
is said in ``docs/stores/oracle.md``. It needs the extension orafce of PostgreSQL.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import oracledb
import psycopg
import pytest

from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import IP, free_port
from tests.servers.server import Server

ROOT = Path(__file__).parents[2]
LOGIN = ("LOCKS", "secret")
_SETTINGS = """
[server]
host = {ip}
port = {port}
[clients]
{user} = {password}
[backend]
type = postgres
conninfo = {database}
presents = 23ai
"""


class Mirror(Server):
    """One of a test's own, before an empty database."""

    program = "the Mirror of seerdb"

    def __init__(self, folder: Path, database: str) -> None:
        """``database``: of PostgreSQL, the URL of a superuser."""
        super().__init__(folder)
        self._database = database
        self.port: int = 0
        self.begin()

    @property
    def login(self) -> dict[str, str]:
        """For ``oracledb.connect`` and its kin."""
        user, password = LOGIN
        dsn = f"{IP}:{self.port}/FREEPDB1"
        return {"user": user, "password": password, "dsn": dsn}

    @property
    def url(self) -> str:
        return f"oracle://{':'.join(LOGIN)}@{self.login['dsn']}"

    def choose_ports(self) -> None:
        self.port = free_port()

    def command(self) -> Sequence[str | Path]:
        user, password = LOGIN
        settings = self.folder / "mirror.ini"
        settings.write_text(
            _SETTINGS.format(
                ip=IP,
                port=self.port,
                user=user,
                password=password,
                database=self._database,
            )
        )
        python = ["env", f"PYTHONPATH={ROOT}", sys.executable]
        program = [*python, "-m", "tests.servers.mirror_additions"]
        script = f'exec "$@" >{self.folder / self.log_name} 2>&1'
        return ["sh", "-c", script, "run", *program, "--config", str(settings)]

    def answers(self) -> bool:
        try:
            oracledb.connect(**self.login, retry_count=0).close()
        except oracledb.Error:
            return False
        return True


@contextmanager
def mirror_of(server: PostgresqlServer, folder: Path) -> Iterator[Mirror]:
    """In a database of that server, dropped afterwards."""
    with server.database(f"m_{secrets.token_hex(6)}") as database:
        with psycopg.connect(database) as connection:
            found = connection.execute(
                "SELECT FROM pg_available_extensions WHERE name = 'orafce'"
            )
            if not found.rowcount:
                version = connection.info.server_version // 10_000
                pytest.fail(f"apt-get install postgresql-{version}-orafce")
        mirror = Mirror(folder, database)
        try:
            yield mirror
        finally:
            mirror.close()
