"""The least there can be between asyncio and Redis: hiredis on a bare Protocol.

No pool, no reconnect, no time-out, no cancellation: whatever a lock does, it pays for
this much. Every command is a write of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis

_NOTHING = object()
# Of all connections: what is in it is fed at once. Without it asyncio allocates 256 kB
# for each read, which is a mapping made and unmade, and page faults: 30 µs a cycle, in
# some processes and not in others, as the allocator's history has it.
_buffer = memoryview(bytearray(1 << 16))
# Its stub allows for one word only.
_pack = cast("Callable[[tuple[str, ...]], bytes]", hiredis.pack_command)


class Wire(asyncio.BufferedProtocol):
    """A connection: replies come in the order of the requests."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, url: str) -> Wire:
        """Connect."""
        place = urlsplit(url)
        loop = asyncio.get_running_loop()
        assert place.hostname is not None
        assert place.port is not None
        _, wire = await loop.create_connection(cls, place.hostname, place.port)
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Asyncio's."""
        del sizehint
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio's."""
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
        """Send a command; its reply is to come."""
        assert self._transport is not None
        future = self._loop.create_future()
        self._waiting.append(future)
        self._transport.write(_pack(args))
        return future

    def close(self) -> None:
        """Hang up."""
        assert self._transport is not None
        self._transport.close()
