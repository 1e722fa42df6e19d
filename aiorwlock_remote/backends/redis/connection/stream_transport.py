"""A connection that redis-py or valkey-py has opened, under a conversation of ours."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, TypeAlias, cast

from aiorwlock_remote.backends.redis.connection.asyncio_transport import (
    AsyncioTransportBase,
)
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.connection.sockets import tune
from aiorwlock_remote.backends.redis.hosts import Server
from aiorwlock_remote.errors import Unsupported

CHUNK = 65_536

Theirs: TypeAlias = Any
"""An object of redis-py or of valkey-py, neither of which is imported."""


class StreamTransport(AsyncioTransportBase):
    """Takes over the streams of a connected connection, and closes it in the end.

    The connection object itself is never used to send or read a command again, so
    nothing of it can repeat one.
    """

    def __init__(
        self,
        talk: RespProtocol,
        connection: Theirs,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Reads from now on."""
        super().__init__(talk)
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._transport = cast("asyncio.Transport", writer.transport)
        sock = cast("socket.socket | None", writer.get_extra_info("socket"))
        if sock is not None:
            tune(sock)
        self._task = self._loop.create_task(self._read())  # the loop keeps it weakly

    @property
    def server(self) -> Server | None:
        """Host and port, as the client was told by its Sentinel."""
        host = getattr(self._connection, "host", None)
        port = getattr(self._connection, "port", None)
        return None if host is None or port is None else (str(host), int(port))

    @property
    def hung_up(self) -> bool:
        """Whether nothing more will come: known before all of it has been told."""
        return self._reader.at_eof() or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Into the transport; what is lost with it is told by the reader.

        If somebody cancelled that, with every task of the loop, it is told here.
        """
        if not self._transport.is_closing():
            self._transport.write(data)
        elif self._task.cancelled():
            self._loop.call_soon(self._talk.lost, None)

    async def _read(self) -> None:
        failure: Exception | None = None
        try:
            while data := await self._reader.read(CHUNK):
                self._talk.received(data)
        except Exception as exc:  # noqa: BLE001 - told to whoever waits for answers
            failure = exc
        finally:
            self._transport.abort()
            try:
                with suppress(Exception):  # what was wrong with it is known
                    await self._writer.wait_closed()
                await let_go(self._connection)
            finally:
                self._gone.set()
        self._talk.lost(failure)


def take_over(talk: RespProtocol, connection: Theirs, where: str) -> StreamTransport:
    """The wire over a connection that is connected.

    Its two streams are what every connection class of both libraries has to set in
    ``_connect``, in all versions since 4.2: private, but the contract of subclasses.

    Raises:
        Unsupported: it has no streams (a fake one, or a library we do not know).
    """
    reader = getattr(connection, "_reader", None)
    writer = getattr(connection, "_writer", None)
    if not isinstance(reader, asyncio.StreamReader):
        writer = None
    if not isinstance(writer, asyncio.StreamWriter):
        kind = type(connection).__name__
        raise Unsupported(
            what=f"{where}: the client's {kind} is not a stream of asyncio",
            hint="give connect() a URL instead",
        )
    assert isinstance(reader, asyncio.StreamReader)
    return StreamTransport(talk, connection, reader, writer)


async def let_go(connection: Theirs) -> None:
    """Close it at once, waiting for nothing; never raises."""
    with suppress(Exception):
        await connection.disconnect(nowait=True)
