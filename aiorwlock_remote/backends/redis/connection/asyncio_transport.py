"""Transports on asyncio: over our own sockets, and over those of a user's client."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio

from aiorwlock_remote._util.driver_loop import in_daemon_thread
from aiorwlock_remote._util.native import getaddrinfo
from aiorwlock_remote._util.private_parts import version_of
from aiorwlock_remote.backends.redis.addresses import (
    Server,
    SocketAddress,
    close_on_error,
    configure_socket,
)
from aiorwlock_remote.backends.redis.connection.protocol import READ_SIZE, RespProtocol
from aiorwlock_remote.backends.redis.errors import from_failure
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import Unsupported

ClientObject: TypeAlias = Any
"""An object of redis-py or valkey-py; neither library is imported."""

_Lookup: TypeAlias = "asyncio.Task[list[SocketAddress]]"
_Lookups: TypeAlias = dict[Server, _Lookup]

_lookups: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lookups] = WeakKeyDictionary()

LISTENING_TURNS = 3
"""Turns that an event loop needs, after it stood still, to read what has arrived."""
WITH_STREAMS = "redis-py 6.0 to 8.1 or valkey-py 6.1 to 6.2"
"""Versions of the libraries whose connections are known to have their two streams."""


class AsyncioTransportBase:
    """Base of the two transports that send bytes through an ``asyncio.Transport``."""

    _transport: asyncio.Transport

    def __init__(self, protocol: RespProtocol) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._closed = asyncio.Event()

    def wake(self) -> None:
        # Behind the callbacks that are ready now, whose calls are gathered first.
        self._loop.call_soon(self._protocol.flush)

    @property
    def hung_up(self) -> bool:
        """Whether the connection is closed, or is about to be."""
        return self._transport.is_closing()

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        self._transport.abort()

    async def aclose(self) -> None:
        self._transport.abort()
        await self._closed.wait()


class AsyncioTransport(AsyncioTransportBase, asyncio.BufferedProtocol):
    """Transport of a connection that this library opens through the event loop."""

    def __init__(self, protocol: RespProtocol) -> None:
        super().__init__(protocol)
        # For a plain asyncio.Protocol the loop allocates 256 kB for each read, which
        # costs up to half of a round trip if the C library maps that memory anew each
        # time. The methods of `protocol` and of the loop's transport stand in for our
        # own, which saves two calls for every request and every reply.
        self.get_buffer: Callable[[int], memoryview] = protocol.get_buffer  # type: ignore[assignment]
        self.buffer_updated: Callable[[int], None] = protocol.buffer_updated  # type: ignore[assignment]
        self.write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        configure_socket(cast("socket.socket", transport.get_extra_info("socket")))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._protocol.lost(exc)


class StreamTransport(AsyncioTransportBase):
    """Transport over the two streams of a connection that a user's client opened.

    The client's connection object sends and reads no commands any more, so it cannot
    repeat one. It is disconnected in the end.
    """

    def __init__(
        self,
        protocol: RespProtocol,
        connection: ClientObject,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        super().__init__(protocol)
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._transport = cast("asyncio.Transport", writer.transport)
        sock = cast("socket.socket | None", writer.get_extra_info("socket"))
        if sock is not None:
            configure_socket(sock)
        # The loop itself refers to its tasks only weakly.
        self._task = self._loop.create_task(self._read())

    @property
    def server(self) -> Server | None:
        """Host and port that the client's Sentinel named, if the client knows them."""
        host = getattr(self._connection, "host", None)
        port = getattr(self._connection, "port", None)
        return None if host is None or port is None else (str(host), int(port))

    @property
    def hung_up(self) -> bool:
        return self._reader.at_eof() or super().hung_up

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)
        elif self._task.cancelled():
            # `_read` reports a loss, unless a program cancelled it together with every
            # other task of the loop.
            self._loop.call_soon(self._protocol.lost, None)

    async def _read(self) -> None:
        failure: Exception | None = None
        try:
            while data := await self._reader.read(READ_SIZE):
                self._protocol.received(data)
        except Exception as exc:  # noqa: BLE001 - the calls in flight fail with it
            failure = exc
        finally:
            self._transport.abort()
            try:
                with suppress(Exception):  # the failure is known already
                    await self._writer.wait_closed()
                await disconnect(self._connection)
            finally:
                self._closed.set()
        self._protocol.lost(failure)


def take_over(
    protocol: RespProtocol, connection: ClientObject, where: str
) -> StreamTransport:
    """Return a transport over a client's connection, which must be connected.

    ``protocol`` gets what the server sends; ``where`` names the server in errors. The
    two streams are private attributes, but every connection class of both libraries has
    to set them in ``_connect``: they are the contract of subclasses since redis-py 4.2.

    Raises:
        Unsupported: The connection has no streams (a fake, or an unknown library).
    """
    match getattr(connection, "_reader", None), getattr(connection, "_writer", None):
        case asyncio.StreamReader() as reader, asyncio.StreamWriter() as writer:
            return StreamTransport(protocol, connection, reader, writer)
        case _:
            kind = type(connection).__name__
            library = type(connection).__module__.partition(".")[0]
            made = f"{kind} of {library} {version_of(library)}"
            raise Unsupported(
                what=f"{where}: the client's {made} is not a stream of asyncio",
                hint=f"give connect() a URL instead, or use {WITH_STREAMS}",
            )


async def disconnect(connection: ClientObject) -> None:
    """Close a client's connection without waiting for its server. Never raises."""
    with suppress(Exception):
        await connection.disconnect(nowait=True)


async def dial(options: Options, protocol: RespProtocol) -> AsyncioTransport:
    """Connect to the first address of the host that answers; attach ``protocol``.

    Each address has an equal share of the time that the caller's cancel scope leaves.
    ``create_connection`` would give all of it to the first address, and uvloop's knows
    no ``happy_eyeballs_delay`` (test_dns.py).
    """
    loop = asyncio.get_running_loop()
    if options.path:
        _, transport = await loop.create_unix_connection(
            lambda: AsyncioTransport(protocol), options.path
        )
        return transport
    context = options.tls_context()
    sock = await _connected(await _addresses(options))
    with close_on_error(sock):
        _, transport = await loop.create_connection(
            lambda: AsyncioTransport(protocol),
            sock=sock,
            ssl=context,
            server_hostname=options.host if context else None,
        )
    return transport


async def _addresses(options: Options) -> list[SocketAddress]:
    # The loop resolves names in a thread that cannot be cancelled. One lookup at a time
    # for each host: a resolver that hangs would otherwise use up, attempt by attempt,
    # the threads that the user's own calls need (test_dns.py:
    # test_a_resolver_that_is_away_keeps_one_thread_of_the_loops).
    loop, server = asyncio.get_running_loop(), (options.host, options.port)
    lookups = _lookups.setdefault(loop, {})
    lookup = lookups.get(server)
    if lookup is None or lookup.done():
        lookup = lookups[server] = loop.create_task(_look_up(server))
        lookup.add_done_callback(partial(_looked_up, lookups, server))
    return await asyncio.shield(lookup)


async def _look_up(server: Server) -> list[SocketAddress]:
    found = await asyncio.get_running_loop().getaddrinfo(
        *server, type=socket.SOCK_STREAM
    )
    return [(family, address) for family, _, _, _, address in found]


def _looked_up(lookups: _Lookups, server: Server, lookup: _Lookup) -> None:
    if lookups.get(server) is lookup:
        del lookups[server]
    if not lookup.cancelled():
        # Retrieved, so that asyncio logs nothing if every waiter was cancelled.
        lookup.exception()


async def _connected(addresses: Sequence[SocketAddress]) -> socket.socket:
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


class RenewalLoop(asyncio.SelectorEventLoop):
    """Event loop of a renewal channel, which runs only while there is a batch.

    It has no ``epoll``: that would be one more file descriptor of each channel, and a
    forked child process that closes its copy of the loop would make the parent's loop
    deaf to ``call_soon_threadsafe`` (test_renewal_loop.py).
    """

    def __init__(self) -> None:
        # Windows has no poll.
        made = getattr(selectors, "PollSelector", selectors.DefaultSelector)
        super().__init__(made())

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name
        proto: int = 0,
        flags: int = 0,
    ) -> Any:  # noqa: ANN401 - as asyncio's
        """Resolve a name in a daemon thread; a numeric address needs no thread.

        The end of the process would wait for a thread of the loop's executor: for half
        a minute if the resolver is away.
        """
        kind = {"family": family, "type": type, "proto": proto}
        look_up = partial(getaddrinfo, host, port, **kind)
        try:
            return look_up(flags=flags | socket.AI_NUMERICHOST)
        except socket.gaierror:
            return await in_daemon_thread(self, partial(look_up, flags=flags))


def renewal_runner(where: str) -> asyncio.Runner:
    """Return a runner of a new ``RenewalLoop``.

    Raises:
        BackendUnavailable: No file descriptor is left. ``where`` names the server.
    """
    try:
        # Tried first: asyncio leaves half of a loop, whose destructor complains.
        for end in socket.socketpair():
            end.close()
        runner = asyncio.Runner(loop_factory=RenewalLoop)
        runner.get_loop()
    except OSError as exc:
        raise from_failure(exc, where) from exc
    return runner


async def still_open(protocol: RespProtocol) -> bool:
    """Return False if the server closed the connection while the loop stood still."""
    for _ in range(LISTENING_TURNS):
        await asyncio.sleep(0)
    transport = protocol.transport
    hung_up = isinstance(transport, AsyncioTransportBase) and transport.hung_up
    return protocol.alive and not hung_up
