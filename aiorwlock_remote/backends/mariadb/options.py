"""``mariadb://…`` → how to reach the database and how to ask it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from aiorwlock_remote._util.tls import (
    TLS_OPTIONS,
    TlsOptions,
    TlsOptionsMixin,
    tls_options_of,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address, in_range
from aiorwlock_remote.errors import ConfigurationError

PORT = 3306
SCHEMA = "rwlock schema mariadb prints the tables and grants"
EXAMPLE = "mariadb://user:password@host:3306/database"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,63}")
_KNOWN = ("call_timeout", "connections", "socket", "tls")


@dataclass(frozen=True, slots=True)
class Options(TlsOptionsMixin):
    """Where the database is and how to ask it. Its ``repr`` shows no password.

    Seconds: ``connect_timeout`` until a connection is up, ``call_timeout`` until a
    request is given up. ``connections``: as many at most, besides the keeper's.
    ``tables``: the database that has the tables, if not the one of the connection.
    """

    host: str = ""
    port: int = PORT
    socket: str = ""
    database: str = ""
    tables: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    connections: int = 8
    connect_timeout: float = 5.0
    call_timeout: float = 5.0
    tls: TlsOptions | None = None

    @property
    def where(self) -> str:
        """The database, for messages."""
        if self.socket:
            return f"{self.socket}/{self.database}"
        if not self.host:
            return "the pool"
        return f"{self.host}:{self.port}/{self.database}"


def options_of(address: Address, *, connect_timeout: float = 5.0) -> Options:
    """What a URL says.

    Raises:
        ConfigurationError: a part or an option of it cannot be used.
    """
    tls = address.yes("tls", default=False)
    address.only(*_KNOWN, *(TLS_OPTIONS if tls else ()))
    database, socket = address.path.removeprefix("/"), address.query.get("socket", "")
    host = address.host or ("localhost" if socket else "")
    if not host or "," in host or address.port == 0 or not database:
        raise ConfigurationError(
            what=f"{address.scheme}: one host, a port that is not 0 and a database",
            hint=f"{EXAMPLE}, or ?socket=/path/of/its/socket",
        )
    if socket and not Path(socket).is_socket():
        raise ConfigurationError(what=f"{address.scheme}: there is no socket {socket}")
    return Options(
        host=host,
        port=address.port or PORT,
        socket=socket,
        database=database,
        username=address.username or "",
        password=address.password or "",
        connections=address.whole("connections", 8, least=1, most=100),
        connect_timeout=connect_timeout,
        call_timeout=check_timeout(address.number("call_timeout", 5.0)),
        tls=tls_options_of(address) if tls else None,
    )


def check_name(name: str) -> str:
    """A database or a user, which goes into SQL in quotes.

    Raises:
        ConfigurationError: anything but letters, digits, _ $ -.
    """
    if name and not _NAME.fullmatch(name):
        raise ConfigurationError(
            what=f"mariadb: the name {quoted(name)} cannot be used",
            hint="letters, digits, _ $ -; no digit first",
        )
    return name


def check_timeout(seconds: float) -> float:
    """How long a request may take.

    Raises:
        ConfigurationError: not from 0.05 s to an hour.
    """
    return in_range("mariadb: call_timeout", seconds, 0.05, 3600.0)
