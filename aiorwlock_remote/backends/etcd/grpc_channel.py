"""Connections of gRPC to one of several servers: to the next one if it is lost."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from functools import partial

from aiorwlock_remote.backends.etcd.grpc_connection import Disconnected, GrpcConnection
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.ports import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.etcd")

NEXT_ENDPOINT = 0.3
"""Seconds after which the next server is tried beside one that has not answered."""
OPENED_IN = 5.0
"""Seconds after which an attempt to reach any server fails."""

Endpoint = tuple[str, int]
"""Host name or IP address, and port."""
Greet = Callable[[GrpcConnection, Endpoint], Awaitable[None]]


def shown(endpoint: Endpoint) -> str:
    """Return ``host:port``; an IPv6 address is put in brackets."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_DATE = re.compile(rb"(?i)\r\ndate: ([^\r]+)")


async def http_date(
    endpoints: tuple[Endpoint, ...], tls: ssl.SSLContext | None
) -> tuple[str, float] | None:
    """Return a server and its wall clock, in Unix seconds; None: none sends it.

    gRPC has no clock; an answer to HTTP has a ``Date``, in whole seconds.
    """
    for endpoint in endpoints:
        ask = f"GET /version HTTP/1.1\r\nHost: {shown(endpoint)}\r\n\r\n"
        try:
            async with asyncio.timeout(OPENED_IN):
                reader, writer = await asyncio.open_connection(*endpoint, ssl=tls)
                try:
                    writer.write(ask.encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                finally:
                    writer.close()
            date = _DATE.search(head)
            if date is not None:
                told = parsedate_to_datetime(date[1].decode())
                return shown(endpoint), told.timestamp() + 0.5
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError):
            continue  # TimeoutError is an OSError
    return None


class GrpcChannel:
    """One connection at a time, for one asyncio loop."""

    def __init__(
        self, endpoints: tuple[Endpoint, ...], tls: ssl.SSLContext | None, greet: Greet
    ) -> None:
        """Create a channel that is not connected.

        Args:
            endpoints: The servers.
            tls: None for connections without TLS.
            greet: Called with each connection that speaks HTTP/2, before it is used;
                raises an error if it is not to be used.
        """
        self.server: str = ""
        """Address of the server to which the last connection was."""
        self._endpoints = endpoints
        self._tls = tls
        self._greet = greet
        self._first = 0  # of the endpoints, when a connection is made
        self._connection: GrpcConnection | None = None
        self._opening: asyncio.Task[GrpcConnection] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and not self._connection.closed

    async def open(self, seconds: float) -> GrpcConnection:
        """Return the connection, a new one if it is lost; raise what ``greet`` raises.

        ``seconds``: how long to wait for a new one.
        """
        if self._connection is not None and not self._connection.closed:
            return self._connection
        await asyncio.sleep(0)  # what was begun without a task has one from here on
        # One attempt for all callers; a caller that gives up does not end it.
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opened)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._opening)
        except TimeoutError as exc:
            raise Disconnected("no member has answered in time", unsent=True) from exc

    def drop(self, connection: GrpcConnection, why: str) -> None:
        """Close a connection; the next one goes to the next server."""
        if not connection.closed:
            log_event(log, "etcd_connection_dropped", server=self.server, why=why)
            connection.abort(why)
            self._first += 1

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.abort()

    # ----------------------------------------------------------------------- inside

    def _opened(self, task: asyncio.Task[GrpcConnection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    async def _open(self) -> GrpcConnection:
        """Connect to the first member that answers, each beside those before it.

        Those that have failed are tried again as long as another one says nothing: it
        may be stopped, and the others elect a leader.
        """
        endpoints = self._endpoints
        first = self._first % len(endpoints)
        left, failed = [*endpoints[first:], *endpoints[:first]], list[Endpoint]()
        attempts: dict[asyncio.Task[GrpcConnection], Endpoint] = {}
        error: Exception = Disconnected("no member can be reached", unsent=True)
        until = asyncio.get_running_loop().time() + OPENED_IN
        try:
            while (left or attempts) and asyncio.get_running_loop().time() < until:
                if left:
                    endpoint = left.pop(0)
                    attempt = asyncio.ensure_future(self._greeted(endpoint))
                    attempts[attempt] = endpoint
                done, _ = await asyncio.wait(
                    attempts, timeout=NEXT_ENDPOINT, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    endpoint = attempts.pop(attempt)
                    try:
                        connection = attempt.result()
                    except Exception as exc:  # noqa: BLE001 - the last one is raised
                        error = _graver(error, exc)
                        failed.append(endpoint)
                    else:
                        self._first = endpoints.index(endpoint)
                        self.server = shown(endpoint)
                        return connection
                if not left and attempts and not done:
                    left, failed = failed, []
            raise error
        finally:
            for attempt in attempts:
                attempt.add_done_callback(_discard)
                attempt.cancel()

    async def _greeted(self, endpoint: Endpoint) -> GrpcConnection:
        tls = self._tls is not None
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(GrpcConnection, shown(endpoint), tls=tls),
            *endpoint,
            ssl=self._tls,
            server_hostname=endpoint[0] if tls else None,
        )
        try:
            await connection.greeted
            await self._greet(connection, endpoint)
        except BaseException:
            connection.abort()
            raise
        return connection


def _graver(one: Exception, other: Exception) -> Exception:
    # What a retry does not help against (version, certificate, login) is shown first.
    return one if isinstance(one, Unsupported | ssl.SSLError) else other


def _discard(task: asyncio.Task[GrpcConnection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().abort()
