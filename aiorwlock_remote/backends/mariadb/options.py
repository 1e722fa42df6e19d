"""Options of the store and of a URL ``mariadb://…``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiorwlock_remote.cas.driver import options
from aiorwlock_remote.cas.driver.options import ConnectionOptions, common_options
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError

PORT = 3306
SCHEMA = "rwlock schema mariadb prints the tables and grants"
EXAMPLE = "mariadb://user:password@host:3306/database"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,63}")

check_timeout: partial[float] = partial(options.check_timeout, "mariadb")
check_name: partial[str] = partial(
    options.check_name, "mariadb", _NAME, "letters, digits, _ $ -; no digit first"
)


@dataclass(frozen=True, slots=True)
class Options(ConnectionOptions):
    """Address, login and settings of a MariaDB store.

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
    """Return the options that a URL contains, or raise ``ConfigurationError``."""
    common = common_options(address, "mariadb", PORT, connect_timeout, "socket")
    database, socket = address.path.removeprefix("/"), address.query.get("socket", "")
    host = address.host or ("localhost" if socket else "")
    if not host or "," in host or address.port == 0 or not database:
        raise ConfigurationError(
            what=f"{address.scheme}: the URL needs one host, a port that is not 0 and "
            "a database",
            hint=f"{EXAMPLE}, or ?socket=/path/of/its/socket",
        )
    if socket and not Path(socket).is_socket():
        raise ConfigurationError(what=f"{address.scheme}: {socket} is not a socket")
    return Options(host=host, socket=socket, database=database, **common)
