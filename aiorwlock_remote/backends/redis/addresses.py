"""Server addresses: read from URLs, resolved within a time limit; socket options."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from aiorwlock_remote._util.native import Event, Lock, getaddrinfo
from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError

Server = tuple[str, int]
"""Host name or IP address, and port number."""
SocketAddress = tuple[socket.AddressFamily, Any]
"""Address family, and the address argument of ``socket.connect``."""

_HOST = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?")
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Socket options of TCP keepalive and their values (seconds, seconds, probes)."""


def servers_of(address: Address, port: int) -> tuple[Server, ...]:
    """Return the servers in the host part of a URL such as ``h1,h2:26379,[::1]:7000``.

    Args:
        address: The parsed URL.
        port: The port of each server that is named without one.

    Raises:
        ConfigurationError: A part is not a host with an optional port from 1 to 65535.
    """
    if "," in address.host:
        found = tuple(_server(address, part, port) for part in address.host.split(","))
    elif address.host:
        found = ((address.host, port if address.port is None else address.port),)
    else:
        found = ()
    for server in found:
        if not 0 < server[1] < 65536:
            raise invalid(address, f"{shown(server)} has no port from 1 to 65535")
    return found


def invalid(address: Address, what: str, hint: str = "") -> ConfigurationError:
    """Return the error of the store URL ``address``, which says ``what`` is wrong."""
    return ConfigurationError(what=f"{address.scheme}: {what}", hint=hint)


def shown(server: Server) -> str:
    """Return ``host:port`` for messages; an IPv6 address is put in brackets."""
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def close_on_error(sock: socket.socket) -> Iterator[socket.socket]:
    """Yield ``sock``; close it if the body of the ``with`` raises or is cancelled."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def configure_socket(sock: socket.socket) -> None:
    """Send small writes at once, and detect within a minute that an idle peer died."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)  # macOS has another name for one of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class DnsResolver:
    """Resolves host names within a time limit, which ``getaddrinfo`` does not have.

    When the network is away, ``getaddrinfo`` blocks for half a minute. The lease
    keeper's thread must not wait so long: it would report lost grants too late. So each
    server is resolved in a thread, one lookup at a time. A lookup that ends after its
    caller's time limit serves the next caller (test_dns.py).
    """

    def __init__(self) -> None:
        self._lookups: dict[Server, _Lookup] = {}
        self._lock = Lock()

    def start(self, servers: Iterable[Server]) -> None:
        """Start to resolve all ``servers`` at once, without waiting for results.

        Raises:
            BackendUnavailable: The system refused to start a thread.
        """
        for server in servers:
            self._lookup(server)

    def addresses(self, server: Server, seconds: float) -> list[SocketAddress]:
        """Return a server's addresses, best first; wait up to ``seconds`` for them.

        Raises:
            TimeoutError: The name was not resolved in time.
            OSError: The host has no address.
            UnicodeError: The host name is malformed.
            BackendUnavailable: The system refused to start a thread.
        """
        lookup = self._lookup(server)
        if not lookup.ended.wait(max(0.0, seconds)):
            raise TimeoutError
        self._lookups.pop(server, None)
        if lookup.error is not None:
            raise lookup.error
        return lookup.found

    def _lookup(self, server: Server) -> _Lookup:
        # One at a time for each host: a dead resolver costs a thread, not one an
        # attempt.
        with self._lock:
            lookup = self._lookups.get(server)
            if lookup is None:
                lookup = _Lookup(server)
                lookup.start()
                self._lookups[server] = lookup
            return lookup


class _Lookup:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.ended = Event()
        self.found: list[SocketAddress] = []
        self.error: Exception | None = None

    def start(self) -> None:
        # A numeric address needs no resolver, so it costs no thread.
        try:
            self._resolve(socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            start_thread(self._look_up, "lookup")
        else:
            self.ended.set()

    def _look_up(self) -> None:
        try:
            self._resolve(0)
        except Exception as exc:  # noqa: BLE001 - `addresses` raises it
            self.error = exc
        self.ended.set()

    def _resolve(self, flags: int) -> None:
        found = getaddrinfo(*self._server, type=socket.SOCK_STREAM, flags=flags)
        self.found = [(family, address) for family, _, _, _, address in found]


def _server(address: Address, text: str, port: int) -> Server:
    found = _HOST.fullmatch(text)
    if found is None:
        # The text is not shown: it may be a part of a password with a comma in it
        # (test_a_torn_password_is_not_shown).
        raise invalid(
            *(address, "one of several is not a host with a port perhaps"),
            hint="as in host1,host2:7000,[::1]:7001; in a password, %2C is a comma",
        )
    return found["six"] or found["host"], int(found["port"] or port)
