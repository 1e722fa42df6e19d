"""Options that every SQL database reached over a network has in common."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from aiorwlock_remote._util.tls import (
    TLS_OPTIONS,
    TlsOptions,
    TlsOptionsMixin,
    tls_options_of,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address, in_range
from aiorwlock_remote.errors import ConfigurationError

MAX_CONNECTIONS = 100


@dataclass(frozen=True, slots=True)
class ConnectionOptions(TlsOptionsMixin):
    """Address of a database server, login, and time limits.

    The ``repr`` shows no password.

    Args:
        host: Name of the server; empty if a user's pool provides the connections.
        connections: Maximum of connections for requests; renewals use others.
        connect_timeout: Seconds until a connection must be open.
        call_timeout: Seconds after which an unanswered request fails.
        tls: Certificates to use, or None for a connection without TLS.
    """

    host: str = ""
    port: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    connections: int = 8
    connect_timeout: float = 5.0
    call_timeout: float = 5.0
    tls: TlsOptions | None = None

    @property
    def where(self) -> str:
        """Name of the database in errors and the log, such as ``host:port/name``."""
        raise NotImplementedError


def common_options(
    address: Address, store: str, port: int, connect_timeout: float, *known: str
) -> dict[str, Any]:
    """Return the fields of ``ConnectionOptions`` that a URL sets, except the host.

    Args:
        address: The parsed URL.
        store: Name of the store, for error messages.
        port: Port to use if the URL names none.
        connect_timeout: Seconds; returned as the field ``connect_timeout``.
        known: URL options of this store that are allowed besides the common ones.

    Raises:
        ConfigurationError: An option is unknown or has a bad value.
    """
    tls = address.yes("tls", default=False)
    more = TLS_OPTIONS if tls else ()
    address.only(*sorted((*known, "call_timeout", "connections", "tls")), *more)
    return {
        "port": address.port or port,
        "username": address.username or "",
        "password": address.password or "",
        "connections": address.whole("connections", 8, least=1, most=MAX_CONNECTIONS),
        "connect_timeout": connect_timeout,
        "call_timeout": check_timeout(store, address.number("call_timeout", 5.0)),
        "tls": tls_options_of(address) if tls else None,
    }


def check_name(store: str, pattern: re.Pattern[str], hint: str, name: str) -> str:
    """Return ``name`` if it is valid in SQL as the name of a schema, database or user.

    Args:
        store: Name of the store, for error messages.
        pattern: Matches a valid name. An empty name is always valid.
        hint: Says in words what the pattern allows.
        name: The name to check.

    Raises:
        ConfigurationError: The name does not match.
    """
    if name and not pattern.fullmatch(name):
        raise ConfigurationError(
            what=f"{store}: {quoted(name)} is not a valid name", hint=hint
        )
    return name


def check_timeout(store: str, seconds: float) -> float:
    """Return ``seconds`` if within 0.05 and 3600, else raise ``ConfigurationError``.

    ``store``: name of the store, for the error message.
    """
    return in_range(f"{store}: call_timeout", seconds, 0.05, 3600.0)
