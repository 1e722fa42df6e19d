"""Connection options of the Redis store, read from a URL (``redis+cluster://``, …).

``valkey://`` and ``valkeys://`` mean the same as ``redis://`` and ``rediss://``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from aiorwlock_remote._util.tls import (
    TLS_OPTIONS,
    TlsOptions,
    TlsOptionsMixin,
    tls_options_of,
)
from aiorwlock_remote.backends.redis.addresses import Server, invalid, servers_of, shown
from aiorwlock_remote.backends.redis.sentinel import Sentinels, sentinels_of
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address, whole_number
from aiorwlock_remote.errors import ConfigurationError

PORT = 6379
CLIENT_NAME = "aiorwlock-remote"

_COMMON = ("client_name", "command_timeout", "db", "min_replicas")
_SENTINEL = ("sentinel_password", "sentinel_username")


@dataclass(frozen=True, slots=True)
class Options(TlsOptionsMixin):
    """Address, credentials and timeouts of a store. The ``repr`` shows no password.

    The server is a Unix socket (``path``), or ``host`` and ``port``, or the primary
    that ``sentinels`` name, or a cluster whose nodes the ``seeds`` know.
    ``connect_timeout``: seconds until the handshake must be done; ``command_timeout``:
    seconds until a silent server counts as lost. ``min_replicas``: replicas that must
    have a grant before it is reported. ``name``: replaces the address in messages.
    """

    host: str = ""
    port: int = PORT
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    client_name: str = CLIENT_NAME
    tls: TlsOptions | None = None
    connect_timeout: float = 5.0
    command_timeout: float = 5.0
    name: str = ""
    sentinels: Sentinels | None = None
    client_sentinels: Sentinels | None = None
    """Sentinels of a user's client, which asks them itself before it connects."""
    seeds: tuple[Server, ...] = ()
    min_replicas: int = 0

    @property
    def where(self) -> str:
        if self.name or self.path:
            return self.name or self.path
        if not self.host and self.sentinels is not None:
            return self.sentinels.where
        if not self.host and self.seeds:
            return f"the cluster of {', '.join(map(shown, self.seeds))}"
        return shown((self.host, self.port))

    def at(self, server: Server) -> Options:
        """Return the options for one server, which the Sentinels are not asked for."""
        host, port = server
        return replace(
            self, host=host, port=port, name="", sentinels=None, client_sentinels=None
        )


def options_of(
    address: Address, *, connect_timeout: float = 5.0, min_replicas: int = 0
) -> Options:
    """Return the options that a URL and these arguments of ``connect`` set.

    Raises:
        ConfigurationError: A part of the URL is invalid, or it contradicts an argument.
    """
    kind, _, found_by = address.scheme.partition("+")
    local, secured = kind == "unix", kind in {"rediss", "valkeys"}
    asked, cluster = found_by == "sentinel", found_by == "cluster"
    address.only(
        *(*_COMMON, *(TLS_OPTIONS if secured else ()), *(_SENTINEL if asked else ()))
    )
    tls = tls_options_of(address) if secured else None
    sentinels: Sentinels | None = None
    seeds: tuple[Server, ...] = ()
    db = "" if local else address.path.removeprefix("/")
    if asked:
        sentinels, db = sentinels_of(address, tls)
    elif cluster:
        seeds = _seeds(address)
    elif local:
        if address.host or not address.path.strip("/"):
            what = "the URL must be the path of a socket, with three slashes"
            raise invalid(address, what, "for example unix:///run/redis.sock?db=0")
    elif not address.host or "," in address.host:
        hint = f"for example {address.scheme}://localhost:{PORT}/0"
        raise invalid(address, "the URL must name one host", hint)
    if address.port == 0:
        raise invalid(address, "port 0 cannot be reached")
    return Options(
        host="" if found_by else address.host,
        port=PORT if found_by or address.port is None else address.port,
        path=address.path if local else "",
        db=0 if cluster else _db(address, db),
        username=address.username or None,
        password=address.password or None,
        client_name=_client_name(address),
        tls=tls,
        connect_timeout=connect_timeout,
        command_timeout=_seconds(address, "command_timeout", connect_timeout),
        sentinels=sentinels,
        seeds=seeds,
        min_replicas=_min_replicas(address, min_replicas),
    )


def _seeds(address: Address) -> tuple[Server, ...]:
    seeds = tuple(dict.fromkeys(servers_of(address, PORT)))
    if not seeds:
        hint = f"for example {address.scheme}://host1,host2:{PORT}"
        raise invalid(address, "the URL must name one node or more", hint)
    if _db(address, address.path.strip("/")) != 0:
        raise invalid(address, "a cluster has no database but 0")
    return seeds


def _db(address: Address, path: str) -> int:
    text = address.query.get("db")
    if text is not None and path:
        raise invalid(address, "the database is given twice")
    text = text if text is not None else path or "0"
    number = whole_number(text)
    if number is None:
        raise invalid(address, f"database {quoted(text)} is not a number from 0")
    return number


def _min_replicas(address: Address, given: int) -> int:
    text = address.query.get("min_replicas")
    if text is None:
        return given
    number = whole_number(text)
    if number is None:
        raise invalid(address, f"min_replicas={quoted(text)} is not a number from 0")
    # Two different demands: neither can be dropped in silence
    # (test_min_replicas_given_twice).
    if given not in {0, number}:
        raise ConfigurationError(
            what=f"min_replicas is {given} for connect and {text} in the URL"
        )
    return number


def _client_name(address: Address) -> str:
    name = address.query.get("client_name", CLIENT_NAME)
    # CLIENT SETNAME refuses anything else, at each connection.
    if not name or not all("!" <= char <= "~" for char in name):
        hint = "printable ASCII without spaces"
        raise invalid(address, f"client_name={quoted(name)} cannot be used", hint)
    return name


def _seconds(address: Address, name: str, default: float) -> float:
    number = address.number(name, default)
    if not 0 < number < math.inf:
        raise invalid(address, f"{name} must be a positive number of seconds")
    return number
