"""A MySQL of the tests' own, that keeps nothing: of a newer Debian suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.servers import chosen
from tests.servers.mariadb import USER, Mariadb
from tests.servers.process import IP, free_port
from tests.servers.roots import Root, root_of
from tests.servers.shared import Facts
from tests.servers.template import as_user, empty_home, fill, leaving_nothing

_SETTINGS = {
    "bind-address": IP,
    "innodb-buffer-pool-size": "32M",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-redo-log-capacity": "16M",
    "max-connections": "400",
    "mysqlx": "OFF",
    "performance-schema": "OFF",
    "secure-file-priv": "",
    "skip-log-bin": "ON",
}


def _root() -> Root:
    return chosen.root("mysql") or root_of("sid", "mysql-server-core")


def _program() -> list[str]:
    root = _root()
    # Where it was built it has its messages elsewhere than where it was unpacked.
    return [root.program("mysqld"), "--no-defaults", f"--basedir={root.path / 'usr'}"]


def _made() -> Path:
    """The files of a new one, in a folder that its user may enter."""
    home = empty_home("mysql", USER)
    fill(home, USER, *_program(), "--initialize-insecure", f"--datadir={home / 'data'}")
    return home


def _command(home: Path, port: int, settings: Mapping[str, str]) -> list[str]:
    own = {"datadir": home / "data", "port": port, "socket": home / "socket"}
    own |= {"pid-file": home / "pid", "tmpdir": home}
    options = [f"--{name}={value}" for name, value in {**settings, **own}.items()]
    return [*as_user(USER), *_program(), *options]


def prepare(_folder: Path) -> tuple[list[str], Facts]:
    """Makes its files and gives the command that runs it."""
    home, port = _made(), free_port()
    command = leaving_nothing(home, "KILL", _command(home, port, _SETTINGS))
    return command, {"home": str(home), "port": port}


class Mysql(Mariadb):
    """One of a test's own, to be stopped and killed. It keeps its files."""

    program = "MySQL"
    scheme = "mysql"
    made = staticmethod(_made)

    def serving(self) -> list[str]:
        durable = {"innodb-flush-log-at-trx-commit": "1"}
        return _command(self._home, self.port, _SETTINGS | durable | self._config)
