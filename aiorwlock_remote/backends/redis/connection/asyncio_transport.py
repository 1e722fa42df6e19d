"""A connection on asyncio, whatever implements the loop; imported only there.

What every wire over a transport of asyncio does alike.

A connection that redis-py or valkey-py has opened, under a conversation of ours.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio

from aiorwlock_remote.backends.redis.addresses import (
    Server,
    SocketAddress,
    close_on_error,
    configure_socket,
)
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import Unsupported


class AsyncioTransportBase:
    """The outgoing half of a conversation, and its end. ``_gone``: nothing is left."""

    _transport: asyncio.Transport

    def __init__(self, talk: RespProtocol) -> None:
        """In the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._talk = talk
        self._gone = asyncio.Event()

    def wake(self) -> None:
        """Flush after what is ready to run in this tick."""
        self._loop.call_soon(self._talk.flush)

    def unsent(self) -> int:
        """Bytes the transport keeps."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close at once; the reading half meets that and tells."""
        self._transport.abort()

    async def aclose(self) -> None:
        """Close at once and wait until nothing is left."""
        self._transport.abort()
        await self._gone.wait()


READ_BUFFER_BYTES = 65_536

_Lookup: TypeAlias = "asyncio.Task[list[SocketAddress]]"
_UnderWay: TypeAlias = dict[Server, _Lookup]

_lookups: WeakKeyDictionary[asyncio.AbstractEventLoop, _UnderWay] = WeakKeyDictionary()


class AsyncioTransport(AsyncioTransportBase, asyncio.BufferedProtocol):
    """A transport of asyncio under a conversation.

    It brings its own buffer: for a plain Protocol asyncio makes one of 256 kB for each
    read, which costs up to half of a round trip when the C library maps it anew.
    """

    def __init__(self, talk: RespProtocol) -> None:
        """Connected by the loop."""
        super().__init__(talk)
        self._buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self.write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Commands can be written from now on."""
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        configure_socket(cast("socket.socket", transport.get_extra_info("socket")))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where answers are to be put."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answers came."""
        self._talk.received(self._buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._gone.set()
        self._talk.lost(exc)


async def dial(options: Options, talk: RespProtocol) -> AsyncioTransport:
    """Connect: every address of the host is tried in turn, with its share of the time.

    ``create_connection`` itself has all of it for the first, and uvloop's knows no
    ``happy_eyeballs_delay``.
    """
    loop = asyncio.get_running_loop()
    if options.path:
        _, wire = await loop.create_unix_connection(
            lambda: AsyncioTransport(talk), options.path
        )
        return wire
    context = options.tls_context()
    sock = await _connected(await _addresses(options))
    with close_on_error(sock):
        _, wire = await loop.create_connection(
            lambda: AsyncioTransport(talk),
            sock=sock,
            ssl=context,
            server_hostname=options.host if context else None,
        )
    return wire


async def _addresses(options: Options) -> list[SocketAddress]:
    """Asked for in a thread of the loop's, which nobody can cancel.

    So one question at a time for each host: else a resolver that is away, asked again
    and again, would use up the threads that our user's own calls need.
    """
    loop, server = asyncio.get_running_loop(), (options.host, options.port)
    under_way = _lookups.setdefault(loop, {})
    lookup = under_way.get(server)
    if lookup is None or lookup.done():
        lookup = under_way[server] = loop.create_task(_look_up(server))
        lookup.add_done_callback(partial(_looked_up, under_way, server))
    return await asyncio.shield(lookup)


async def _look_up(server: Server) -> list[SocketAddress]:
    told = await asyncio.get_running_loop().getaddrinfo(
        *server, type=socket.SOCK_STREAM
    )
    return [(family, address) for family, _, _, _, address in told]


def _looked_up(under_way: _UnderWay, server: Server, lookup: _Lookup) -> None:
    if under_way.get(server) is lookup:
        del under_way[server]
    if not lookup.cancelled():
        lookup.exception()  # seen, if nobody waits for it any more


async def _connected(addresses: Sequence[SocketAddress]) -> socket.socket:
    """To the first that answers; one that is silent leaves time for the others."""
    loop, failure = asyncio.get_running_loop(), OSError("no address")
    for tried, (family, address) in enumerate(addresses):
        left = anyio.current_effective_deadline() - anyio.current_time()
        try:
            with close_on_error(socket.socket(family, socket.SOCK_STREAM)) as sock:
                sock.setblocking(False)  # noqa: FBT003 - positional only
                with anyio.fail_after(left / (len(addresses) - tried)):
                    await loop.sock_connect(sock, address)
                return sock
        except OSError as exc:
            failure = exc
    raise failure


CHUNK = 65_536

ClientObject: TypeAlias = Any
"""An object of redis-py or of valkey-py, neither of which is imported."""


class StreamTransport(AsyncioTransportBase):
    """Takes over the streams of a connected connection, and closes it in the end.

    The connection object itself is never used to send or read a command again, so
    nothing of it can repeat one.
    """

    def __init__(
        self,
        talk: RespProtocol,
        connection: ClientObject,
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
            configure_socket(sock)
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
                await disconnect(self._connection)
            finally:
                self._gone.set()
        self._talk.lost(failure)


def take_over(
    talk: RespProtocol, connection: ClientObject, where: str
) -> StreamTransport:
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


async def disconnect(connection: ClientObject) -> None:
    """Close it at once, waiting for nothing; never raises."""
    with suppress(Exception):
        await connection.disconnect(nowait=True)
