"""Several servers in one URL: ``h1,h2:26379,[::1]:7000``."""

from __future__ import annotations

import re

from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError

Server = tuple[str, int]
"""Host and port."""

_HOST = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?")


def servers_of(address: Address, port: int) -> tuple[Server, ...]:
    """The servers a URL names; ``port`` is for those without one.

    Raises:
        ConfigurationError: one of them cannot be used.
    """
    if "," in address.host:
        found = tuple(_server(address, part, port) for part in address.host.split(","))
    elif address.host:
        found = ((address.host, port if address.port is None else address.port),)
    else:
        found = ()
    for server in found:
        if not 0 < server[1] < 65536:
            raise ConfigurationError(
                what=f"{address.scheme}: {shown(server)} has no port from 1 to 65535"
            )
    return found


def shown(server: Server) -> str:
    """A server for messages."""
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _server(address: Address, text: str, port: int) -> Server:
    found = _HOST.fullmatch(text)
    if found is None:
        # Not shown: it may be a piece of a password that is not quoted.
        raise ConfigurationError(
            what=f"{address.scheme}: one of several is not a host with a port perhaps",
            hint="as in host1,host2:7000,[::1]:7001; in a password, %2C is a comma",
        )
    return found["six"] or found["host"], int(found["port"] or port)
