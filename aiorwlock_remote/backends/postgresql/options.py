"""``postgresql://…`` → how to reach the database and how to ask it."""

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
from aiorwlock_remote.core.url import Address, in_range, parse
from aiorwlock_remote.errors import ConfigurationError

PORT = 5432
SCHEMA = "rwlock schema postgresql prints the tables and grants"
EXAMPLE = "postgresql://user:password@host:5432/database"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_MAX_CONNECTIONS = 100
_KNOWN = (
    *("call_timeout", "connections", "host", "listen", "schema", "statement_cache"),
    "tls",
)


@dataclass(frozen=True, slots=True)
class Options(TlsOptionsMixin):
    """Where the database is and how to ask it. Its ``repr`` shows no password.

    Seconds: ``connect_timeout`` until a connection is up, ``call_timeout`` until a
    request is given up. ``connections``: as many at most, besides one that listens and
    the keeper's. ``schema``: of the tables; empty: the first of the search path.
    ``listen``: whether to; ``listen_at``: elsewhere, where a session stays the same.
    ``statement_cache``: whether a connection is the same session each time.
    """

    host: str = ""
    port: int = PORT
    database: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    connections: int = 8
    listen: bool = True
    listen_at: Options | None = None
    statement_cache: bool = True
    connect_timeout: float = 5.0
    call_timeout: float = 5.0
    tls: TlsOptions | None = None

    @property
    def where(self) -> str:
        """The database, for messages."""
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
    query, database = address.query, address.path.removeprefix("/")
    host = query.get("host") or address.host
    if not host or "," in host or address.port == 0 or not database:
        raise ConfigurationError(
            what=f"{address.scheme}: one host, a port that is not 0 and a database",
            hint=f"{EXAMPLE}, or ?host=/folder/of/its/socket",
        )
    if host.startswith("/") and not Path(host).is_dir():
        raise ConfigurationError(what=f"{address.scheme}: there is no folder {host}")
    elsewhere = _listens_at(address, connect_timeout)
    return Options(
        host=host,
        port=address.port or PORT,
        database=database,
        username=address.username or "",
        password=address.password or "",
        schema=check_schema(query.get("schema", "")),
        connections=address.whole("connections", 8, least=1, most=_MAX_CONNECTIONS),
        listen=elsewhere is not None or address.yes("listen", default=True),
        listen_at=elsewhere,
        statement_cache=address.yes("statement_cache", default=True),
        connect_timeout=connect_timeout,
        call_timeout=check_timeout(address.number("call_timeout", 5.0)),
        tls=tls_options_of(address) if tls else None,
    )


def _listens_at(address: Address, connect_timeout: float) -> Options | None:
    url = address.query.get("listen", "")
    if "://" not in url:
        return None
    elsewhere = parse(url)
    if elsewhere.scheme != address.scheme or "listen" in elsewhere.query:
        raise ConfigurationError(
            what=f"{address.scheme}: listen={elsewhere} cannot be used",
            hint=f"yes, no, or {EXAMPLE} with %26 for &",
        )
    return options_of(elsewhere, connect_timeout=connect_timeout)


def check_schema(name: str) -> str:
    """The schema of the tables, which goes into SQL in quotes.

    Raises:
        ConfigurationError: anything but an identifier that needs none.
    """
    if name and not _NAME.fullmatch(name):
        raise ConfigurationError(
            what=f"postgresql: schema {quoted(name)} cannot be used",
            hint="letters, digits, _ and $; no digit first",
        )
    return name


def check_timeout(seconds: float) -> float:
    """How long a request may take.

    Raises:
        ConfigurationError: not from 0.05 s to an hour.
    """
    return in_range("postgresql: call_timeout", seconds, 0.05, 3600.0)
