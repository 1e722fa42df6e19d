"""PgBouncer before a PostgreSQL of the tests: sessions last for a transaction."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.postgresql import USER
from tests.servers.process import (
    IP,
    ServerProcess,
    end_of,
    free_port,
    needed,
    takes_connections,
    until,
)
from tests.servers.template import as_user

_SETTINGS = """
[databases]
* = host={ip} port={server}

[pgbouncer]
listen_addr = {ip}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {home}/users
pool_mode = transaction
default_pool_size = {most}
logfile = {home}/log
"""


class Pgbouncer:
    """``most`` sessions at the server for each database, however many clients."""

    def __init__(self, server: int, most: int = 3) -> None:
        """``server``: the port of the PostgreSQL behind it."""
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
        values = {"ip": IP, "server": server, "port": self.port}
        program = _program()
        settings = _SETTINGS.format(home=self._home, most=most, **values)
        if _keeps_statements(program):
            settings += "max_prepared_statements = 0\n"  # as older ones are
        (self._home / "settings").write_text(settings)
        (self._home / "users").write_text(f'"{USER}" ""\n')
        if not os.geteuid():  # it refuses to run as root
            for path in (self._home, *self._home.iterdir()):
                shutil.chown(path, USER, USER)
        self._process = ServerProcess(*as_user(USER), program, self._home / "settings")
        try:
            until(lambda: takes_connections(IP, self.port), "PgBouncer is there")
        except TimeoutError as exc:
            raise TimeoutError(end_of(self._home / "log")) from exc

    def url(self, through: str) -> str:
        """The same database as that URL's, through it."""
        return f"postgresql://{USER}@{IP}:{self.port}/{through.rpartition('/')[2]}"

    def close(self) -> None:
        """Gone, with its files."""
        self._process.end()
        shutil.rmtree(self._home, ignore_errors=True)


def _program() -> str:
    kept = Path("/usr/sbin/pgbouncer")  # not on everybody's PATH
    return str(kept) if kept.exists() else needed("pgbouncer", "pgbouncer")


def _keeps_statements(program: str) -> bool:
    """Whether it can pass prepared statements on: 1.21 and later."""
    output = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"(\d+)\.(\d+)", output.stdout)
    assert found, output.stdout
    return (int(found[1]), int(found[2])) >= (1, 21)
