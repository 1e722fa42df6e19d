"""Addresses of hosts, within a time: the system, asked for them, knows no limit.

A resolver that is away, as it is when the network is, keeps whoever asks for half a
minute. The keeper must not stand still for that: it would tell of losses too late.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import Any

from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.backends.redis.hosts import Server

Target = tuple[socket.AddressFamily, Any]
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

    def addresses(self, server: Server, seconds: float) -> list[Target]:
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
        self.found: list[Target] = []
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
