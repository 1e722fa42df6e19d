"""A MariaDB of the tests' own, that keeps nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pymysql

from tests.servers import chosen
from tests.servers.database import Database, wait_for
from tests.servers.process import IP, free_port, needed
from tests.servers.shared import Facts
from tests.servers.template import as_user, empty_home, fill, leaving_nothing

_PACKAGE = "mariadb-server"
USER = "mysql"
OWNER = "root"
"""Who may do anything there, without a password."""
_KEPT = "/usr/bin:/usr/sbin"
_SETTINGS = {
    "bind-address": IP,
    "innodb-buffer-pool-size": "32M",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-log-file-size": "16M",
    "max-connections": "400",
    "performance-schema": "OFF",
}


def _program(name: str) -> str:
    root = chosen.root("mariadb")
    if root is not None:
        return root.program(name)
    kept = shutil.which(name, path=_KEPT)  # not everybody's PATH has it
    return kept or needed(name, _PACKAGE)


def _base() -> list[str]:
    """Where a server that is not installed finds its messages and scripts."""
    root = chosen.root("mariadb")
    return [f"--basedir={root.path / 'usr'}"] if root else []


def _made() -> Path:
    """The files of a new one, in a folder that its user may enter."""
    install, home = _program("mariadb-install-db"), empty_home("mariadb", USER)
    fill(
        *(home, USER, install, "--no-defaults", f"--datadir={home / 'data'}"),
        *("--auth-root-authentication-method=normal", "--skip-test-db", *_base()),
    )
    return home


def _command(home: Path, port: int, settings: Mapping[str, str]) -> list[str]:
    own = {"datadir": home / "data", "port": port, "socket": home / "socket"}
    # Each clears its folder of temporary tables when it starts: not of others'.
    own |= {"pid-file": home / "pid", "tmpdir": home}
    options = [f"--{name}={value}" for name, value in {**settings, **own}.items()]
    command = [_program("mariadbd"), "--no-defaults", *_base(), *options]
    return [*as_user(USER), *command, "--skip-name-resolve"]


def connected(url: str, **more: Any) -> pymysql.Connection[Any]:  # noqa: ANN401
    """By another driver than ours; ``url`` as ours are, without options."""
    login, _, rest = url.partition("://")[2].partition("@")
    user, _, password = login.partition(":")
    address, _, database = rest.partition("/")
    return pymysql.connect(
        host=IP,
        port=int(address.rpartition(":")[2]),
        user=user,
        password=password,
        database=database.partition("?")[0] or None,
        ssl_disabled=True,  # else it reads all certificates each time
        **{"autocommit": True, "connect_timeout": 5, **more},
    )


def serves(url: str) -> bool:
    """Whether somebody is let in by now."""
    try:
        connected(url, connect_timeout=1).close()
    except pymysql.OperationalError:  # Django makes another class of `pymysql.err`'s
        return False
    return True


def prepare(_folder: Path) -> tuple[list[str], Facts]:
    """Makes its files and gives the command that runs it."""
    home, port = _made(), free_port()
    command = leaving_nothing(home, "KILL", _command(home, port, _SETTINGS))
    return command, {"home": str(home), "port": port}


class Mariadb(Database):
    """One of a test's own, to be stopped and killed. It keeps its files."""

    program = "MariaDB"
    scheme: ClassVar[str] = "mariadb"
    user = USER
    made = staticmethod(_made)

    @property
    def root(self) -> str:
        """As its superuser, over TCP."""
        return f"{self.scheme}://{OWNER}@{IP}:{self.port}/"

    @property
    def url(self) -> str:
        """The same, at the database that it is made with."""
        return f"{self.root}app"

    @property
    def socket(self) -> Path:
        """In the file system."""
        return self._home / "socket"

    def serving(self) -> list[str]:
        durable = {"innodb-flush-log-at-trx-commit": "1"}
        return _command(self._home, self.port, _SETTINGS | durable | self._config)

    def answers(self) -> bool:
        return serves(self.root)


@dataclass(frozen=True, slots=True)
class MariadbServer:
    """The one of this pytest run: use a database of your own."""

    home: Path
    port: int
    program: str = "MariaDB"

    @property
    def root(self) -> str:
        """As its superuser, over TCP."""
        return f"{self.program.lower()}://{OWNER}@{IP}:{self.port}/"

    @property
    def socket(self) -> Path:
        """In the file system."""
        return self.home / "socket"

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards."""
        run(self.root, f"CREATE DATABASE {name}")
        try:
            yield f"{self.root}{name}"
        finally:
            run(self.root, f"DROP DATABASE {name}")

    def wait(self) -> None:
        wait_for(self.program, lambda: serves(self.root), self.home)


def run(url: str, *statements: str) -> list[Any]:
    """One after the other; what the last one tells."""
    with connected(url) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())
