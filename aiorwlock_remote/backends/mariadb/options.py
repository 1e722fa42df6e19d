"""Options of the store and of a URL ``mariadb://…`` or ``mysql://…``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aiorwlock_remote.cas.driver import options
from aiorwlock_remote.cas.driver.options import ConnectionOptions, common_options
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError

PORT = 3306

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,63}")


def check_name(store: str, name: str) -> str:
    """Return ``name`` if it may be a database or user, or is empty, else raise.

    ``store``: name of the store, for the message of the ``ConfigurationError``.
    """
    hint = "letters, digits, _ $ -; no digit first"
    return options.check_name(store, _NAME, hint, name)


@dataclass(frozen=True, slots=True)
class Options(ConnectionOptions):
    """Address, login and settings of a MariaDB or MySQL store.

    Args:
        socket: Path of the server's socket, or empty for TCP.
        database: Database to which connections are opened.
        tables: Database of the lock tables; empty if ``database`` has them.
    """

    port: int = PORT
    socket: str = ""
    database: str = ""
    tables: str = ""

    @property
    def where(self) -> str:
        if self.socket:
            return f"{self.socket}/{self.database}"
        if not self.host:
            return "the pool"
        return f"{self.host}:{self.port}/{self.database}"


def options_of(address: Address, connect_timeout: float = 5.0) -> Options:
    """Return the options of a URL, or raise ``ConfigurationError`` for an invalid part.

    ``connect_timeout``, in seconds, is an argument of ``connect`` and no part of it.
    """
    common = common_options(address, address.scheme, PORT, connect_timeout, "socket")
    database, socket = address.path.removeprefix("/"), address.query.get("socket", "")
    host = address.host or ("localhost" if socket else "")
    if not host or "," in host or address.port == 0 or not database:
        raise ConfigurationError(
            what=f"{address.scheme}: the URL needs one host, a port that is not 0 and "
            "a database",
            hint=f"{address.scheme}://user:password@host:3306/database, or "
            "?socket=/path/of/its/socket",
        )
    if socket and not Path(socket).is_socket():
        raise ConfigurationError(what=f"{address.scheme}: {socket} is not a socket")
    return Options(host=host, socket=socket, database=database, **common)
