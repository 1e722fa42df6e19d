"""The floors on Redis: hiredis on asyncio's bare protocol, and two locks on top of it.

There is no pool, no reconnect, no time-out and no cancellation: any lock pays for this
much. Every command is a write of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis

from benchmarks.harness.lock import Client, Cycle

_NOTHING = object()
# One buffer for all connections, whose content is parsed at once. With a plain Protocol
# asyncio allocates 256 kB for each read; in some processes, depending on what the
# allocator freed before, that is a mapping made and unmade: 30 µs a cycle.
_buffer = memoryview(bytearray(1 << 16))
# The stub of hiredis allows for one word only.
_pack = cast("Callable[[tuple[str, ...]], bytes]", hiredis.pack_command)


class BareConnection(asyncio.BufferedProtocol):
    """A connection on which replies come in the order of the commands."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, url: str) -> BareConnection:
        """Connect to the server of a URL."""
        address = urlsplit(url)
        loop = asyncio.get_running_loop()
        assert address.hostname is not None
        assert address.port is not None
        _, connection = await loop.create_connection(
            cls, address.hostname, address.port
        )
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        reader.feed(bytes(_buffer[:nbytes]))
        while (reply := reader.gets()) is not _NOTHING:
            waiting = self._waiting.popleft()
            if waiting.done():
                continue
            if isinstance(reply, Exception):
                waiting.set_exception(reply)
            else:
                waiting.set_result(reply)

    def call(self, *args: str) -> asyncio.Future[Any]:
        """Send a command; return the future of its reply."""
        assert self._transport is not None
        future = self._loop.create_future()
        self._waiting.append(future)
        self._transport.write(_pack(args))
        return future

    def close(self) -> None:
        """Close the connection to the server."""
        assert self._transport is not None
        self._transport.close()


# ------------------------------------------- a lock with a lease, in two round trips

COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then"
    " return redis.call('DEL', KEYS[1]) end return 0"
)


class _LeaseLock:
    """``SET NX PX``, and a script that compares and deletes, without any waiting."""

    def __init__(
        self, connection: BareConnection, sha: str, key: str, lease: float
    ) -> None:
        self._connection = connection
        self._sha = sha
        self._key = key
        self._ticket = secrets.token_hex(16)
        self._lease = str(int(lease * 1000))

    async def __aenter__(self) -> None:
        taken = await self._connection.call(
            "SET", self._key, self._ticket, "NX", "PX", self._lease
        )
        assert taken is not None, "the floor is for one task to a key"

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        deleted = await self._connection.call(
            "EVALSHA", self._sha, "1", self._key, self._ticket
        )
        assert deleted == 1


class _LeaseClient:
    def __init__(self, connection: BareConnection, sha: str, lease: float) -> None:
        self._connection = connection
        self._sha = sha
        self._lease = lease

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _LeaseLock(self._connection, self._sha, key, self._lease)


@asynccontextmanager
async def connect_floor(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one connection for all keys."""
    connection = await BareConnection.open(url)
    sha = await connection.call("SCRIPT", "LOAD", COMPARE_AND_DELETE)
    yield _LeaseClient(connection, sha.decode(), lease)
    connection.close()


# ----------------------------------------------------------- the fastest hand-over


class _TokenLock:
    """A token in a list, which the holder takes out and puts back.

    The token has no lease: a holder that dies takes it along, so this is no lock. The
    server serves those who wait in the order in which they came.
    """

    def __init__(self, connection: BareConnection, key: str) -> None:
        self._connection = connection
        self._key = key

    async def __aenter__(self) -> None:
        await self._connection.call("BLPOP", self._key, "0")

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._connection.call("LPUSH", self._key, "token")


class _TokenClient:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connections: list[BareConnection] = []

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        # BLPOP keeps its connection busy, so each task needs one of its own.
        connection = await BareConnection.open(self._url)
        self._connections.append(connection)
        # The first client that asks for a key puts its token in.
        if await connection.call("SET", f"{key}:made", "1", "NX") is not None:
            await connection.call("LPUSH", key, "token")
        return _TokenLock(connection, key)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@asynccontextmanager
async def connect_blpop(url: str, lease: float) -> AsyncIterator[Client]:
    """Open as many connections as locks are asked for."""
    del lease
    client = _TokenClient(url)
    yield client
    client.close()
