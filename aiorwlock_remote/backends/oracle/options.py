"""``oracle://…`` → how to reach the database and how to ask it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from aiorwlock_remote._util.tls import (
    TLS_OPTIONS,
    TlsOptions,
    TlsOptionsMixin,
    tls_options_of,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address, in_range
from aiorwlock_remote.errors import ConfigurationError

PORT = 1521
SCHEMA = "rwlock schema oracle prints the tables and grants"
EXAMPLE = "oracle://user:password@host:1521/service"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_$#]{0,127}")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.$#-]*")
_MAX_CONNECTIONS = 100


@dataclass(frozen=True, slots=True)
class Options(TlsOptionsMixin):
    """Where the database is and how to ask it. Its ``repr`` shows no password.

    Seconds: ``connect_timeout`` until a connection is up, ``call_timeout`` until a
    request is given up. ``connections``: as many at most, besides the keeper's.
    ``schema``: the owner of the tables; empty: the user itself.
    """

    host: str = ""
    service: str = ""
    port: int = PORT
    username: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    connections: int = 8
    connect_timeout: float = 5.0
    call_timeout: float = 5.0
    tls: TlsOptions | None = None

    @property
    def where(self) -> str:
        """The database, for messages."""
        return f"{self.host}:{self.port}/{self.service}" if self.host else "the pool"


def options_of(address: Address, *, connect_timeout: float = 5.0) -> Options:
    """What a URL says.

    Raises:
        ConfigurationError: a part or an option of it cannot be used.
    """
    tls = address.yes("tls", default=False)
    known = ("call_timeout", "connections", "schema", "tls")
    address.only(*known, *(TLS_OPTIONS if tls else ()))
    service = address.path.removeprefix("/")
    if not (address.host and address.username and address.password):
        raise ConfigurationError(
            what="oracle: user, password and host are needed", hint=EXAMPLE
        )
    if "," in address.host or address.port == 0:
        raise ConfigurationError(
            what="oracle: one host, and a port that is not 0", hint=EXAMPLE
        )
    if not _SERVICE.fullmatch(service):
        raise ConfigurationError(
            what=f"oracle: {quoted(service)} is not the name of a service", hint=EXAMPLE
        )
    return Options(
        host=address.host,
        service=service,
        port=address.port or PORT,
        username=address.username,
        password=address.password,
        schema=check_schema(address.query.get("schema", "")),
        connections=address.whole("connections", 8, least=1, most=_MAX_CONNECTIONS),
        connect_timeout=connect_timeout,
        call_timeout=check_timeout(address.number("call_timeout", 5.0)),
        tls=tls_options_of(address) if tls else None,
    )


def check_schema(name: str) -> str:
    """The owner of the tables, which goes into SQL as it is.

    Raises:
        ConfigurationError: anything but an identifier that needs no quotes.
    """
    if name and not _NAME.fullmatch(name):
        raise ConfigurationError(
            what=f"oracle: schema {quoted(name)} cannot be used",
            hint="letters, digits, _ $ #; a letter first",
        )
    return name


def check_timeout(seconds: float) -> float:
    """How long a request may take.

    Raises:
        ConfigurationError: not from 0.05 s to an hour.
    """
    return in_range("oracle: call_timeout", seconds, 0.05, 3600.0)
