"""Several servers in one URL: ``h1,h2:26379,[::1]:7000``.

Addresses of hosts, within a time: the system, asked for them, knows no limit.

A resolver that is away, as it is when the network is, keeps whoever asks for half a
minute. The keeper must not stand still for that: it would tell of losses too late.

What is done with the socket of every connection, blocking or not.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from aiorwlock_remote._util.threads import start_thread
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


SocketAddress = tuple[socket.AddressFamily, Any]
"""The family, and what ``connect`` wants."""


class DnsResolver:
    """Asks for each host in a thread, one at a time.

    What comes too late is there for who asks next, so that a slow resolver is no
    obstacle, and a dead one costs a thread a host.
    """

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self._under_way: dict[Server, _Lookup] = {}
        self._lock = threading.Lock()

    def start(self, servers: Iterable[Server]) -> None:
        """Ask for all of these at once.

        Raises:
            BackendUnavailable: no thread could be started.
        """
        for server in servers:
            self._lookup(server)

    def addresses(self, server: Server, seconds: float) -> list[SocketAddress]:
        """The addresses of a host and port, in the order they are to be tried.

        Raises:
            OSError: it has none; TimeoutError: nobody told in time.
            UnicodeError: no such name can be.
            BackendUnavailable: no thread could be started.
        """
        lookup = self._lookup(server)
        if not lookup.over.wait(max(0.0, seconds)):
            raise TimeoutError
        self._under_way.pop(server, None)
        if lookup.error is not None:
            raise lookup.error
        return lookup.found

    def _lookup(self, server: Server) -> _Lookup:
        with self._lock:
            lookup = self._under_way.get(server)
            if lookup is None:
                lookup = _Lookup(server)
                lookup.start()
                self._under_way[server] = lookup
            return lookup


class _Lookup:
    """One question, and its answer once it is ``over``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.over = threading.Event()
        self.found: list[SocketAddress] = []
        self.error: Exception | None = None

    def start(self) -> None:
        """In a thread; an address that needs no resolver is there at once."""
        try:
            self._ask(socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            start_thread(self._look_up, "lookup")
        else:
            self.over.set()

    def _look_up(self) -> None:
        try:
            self._ask(0)
        except Exception as exc:  # noqa: BLE001 - raised by whoever asked
            self.error = exc
        self.over.set()

    def _ask(self, flags: int) -> None:
        told = socket.getaddrinfo(*self._server, type=socket.SOCK_STREAM, flags=flags)
        self.found = [(family, address) for family, _, _, _, address in told]


_PROBES = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)


@contextmanager
def close_on_error(sock: socket.socket) -> Iterator[socket.socket]:
    """Whoever leaves by an error, or is cancelled, leaves no socket behind."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def configure_socket(sock: socket.socket) -> None:
    """Small writes leave at once; a dead peer is noticed within a minute when idle."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES:
        option = getattr(socket, name, None)  # macOS calls one of them otherwise
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
