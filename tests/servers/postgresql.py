"""A PostgreSQL of the tests' own, that keeps nothing."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.servers import chosen
from tests.servers.database import Database, wait_for
from tests.servers.process import IP, free_port, needed
from tests.servers.shared import Facts
from tests.servers.template import as_user, empty_home, fill, leaving_nothing

USER = "postgres"
_TRIES = 100
_KEPT = Path("/usr/lib/postgresql")  # where Debian keeps each version apart
_SETTINGS = {
    "autovacuum": "off",
    "deadlock_timeout": "200ms",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": IP,
    "max_connections": "400",
    "shared_buffers": "32MB",
    "synchronous_commit": "off",
}


def _program(name: str) -> str:
    root = chosen.root("postgresql")
    if root is not None:
        return root.program(name)
    kept = sorted(_KEPT.glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(kept[-1]) if kept else needed(name, "postgresql"))


def _made() -> Path:
    """The files of a new one, in a folder that its user may enter."""
    initdb, home = _program("initdb"), empty_home("postgresql", USER)
    fill(
        *(home, USER, initdb, "--no-sync", "--auth=trust", f"--username={USER}"),
        *("--encoding=UTF8", "--locale=C", "--pgdata", home / "data"),
    )
    return home


def _command(home: Path, settings: Mapping[str, str]) -> list[str]:
    command = [*as_user(USER), _program("postgres"), "-D", str(home / "data")]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    return command


def _serves(url: str) -> bool:
    """It takes connections earlier than it serves them."""
    try:
        with psycopg.connect(url, connect_timeout=1):
            return True
    except psycopg.OperationalError:
        return False


def prepare(_folder: Path) -> tuple[list[str], Facts]:
    """Makes its files and gives the command that runs it."""
    home, port = _made(), free_port()
    settings = _SETTINGS | {"port": str(port), "unix_socket_directories": str(home)}
    command = leaving_nothing(home, "QUIT", _command(home, settings))
    return command, {"home": str(home), "port": port}


class Postgresql(Database):
    """One of a test's own, to be stopped and killed. It survives that: ``fsync``."""

    program = "PostgreSQL"
    user = USER
    made = staticmethod(_made)
    ends_by = signal.SIGINT
    """Whoever is connected is sent away."""

    @property
    def url(self) -> str:
        """As its superuser, over TCP."""
        return f"postgresql://{USER}@{IP}:{self.port}/{USER}"

    def serving(self) -> list[str]:
        own = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
        settings = _SETTINGS | own | self._config
        settings |= {
            "port": str(self.port),
            "unix_socket_directories": str(self._home),
            "logging_collector": "off",
        }
        return _command(self._home, settings)

    def start(self) -> None:
        """Again; the children of one that was killed end when they see that."""
        for _ in range(_TRIES):
            self.launch()
            if self._up():
                return
            if "shared memory block" not in self.log():
                break
            time.sleep(0.1)
        raise self.failure()

    def answers(self) -> bool:
        return _serves(self.url)


class Standby(Postgresql):
    """A copy of a primary, which follows that one until it is promoted.

    ``port``: where it gets the log from, a proxy before the primary for example.
    """

    def __init__(self, folder: Path, primary: Postgresql, port: int) -> None:
        self._primary = primary
        source = f"host={IP} port={port} user={USER}"
        super().__init__(folder, {"primary_conninfo": source})

    def choose_ports(self) -> None:
        super().choose_ports()
        data = self._home / "data"
        shutil.rmtree(data)
        fill(
            *(self._home, USER, _program("pg_basebackup"), "--no-sync"),
            *("--checkpoint=fast", "--no-password", "--pgdata", data),
            f"--dbname={self._primary.url}",
        )
        (data / "standby.signal").touch()


@dataclass(frozen=True, slots=True)
class PostgresqlServer:
    """The one of this pytest run: use a database or a schema of your own."""

    home: Path
    port: int

    @property
    def url(self) -> str:
        """As its superuser, over TCP."""
        return f"postgresql://{USER}@{IP}:{self.port}/{USER}"

    @property
    def local(self) -> str:
        """As its superuser, over its socket in the file system."""
        return f"postgresql://{USER}@/{USER}?host={self.home}&port={self.port}"

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            try:
                yield f"postgresql://{USER}@{IP}:{self.port}/{name}"
            finally:
                drop = f"DROP DATABASE {name} WITH (FORCE)"
                connection.execute(drop)

    def wait(self) -> None:
        wait_for("PostgreSQL", lambda: _serves(self.url), self.home)
