"""A connection on asyncio, whatever implements the loop; imported only there.

What every wire over a transport of asyncio does alike.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

import anyio

from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.connection.sockets import closing_if_failed, tune
from aiorwlock_remote.backends.redis.dns import Target
from aiorwlock_remote.backends.redis.hosts import Server
from aiorwlock_remote.backends.redis.options import Options


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

_Lookup: TypeAlias = "asyncio.Task[list[Target]]"
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
        tune(cast("socket.socket", transport.get_extra_info("socket")))

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
    with closing_if_failed(sock):
        _, wire = await loop.create_connection(
            lambda: AsyncioTransport(talk),
            sock=sock,
            ssl=context,
            server_hostname=options.host if context else None,
        )
    return wire


async def _addresses(options: Options) -> list[Target]:
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


async def _look_up(server: Server) -> list[Target]:
    told = await asyncio.get_running_loop().getaddrinfo(
        *server, type=socket.SOCK_STREAM
    )
    return [(family, address) for family, _, _, _, address in told]


def _looked_up(under_way: _UnderWay, server: Server, lookup: _Lookup) -> None:
    if under_way.get(server) is lookup:
        del under_way[server]
    if not lookup.cancelled():
        lookup.exception()  # seen, if nobody waits for it any more


async def _connected(addresses: Sequence[Target]) -> socket.socket:
    """To the first that answers; one that is silent leaves time for the others."""
    loop, failure = asyncio.get_running_loop(), OSError("no address")
    for tried, (family, address) in enumerate(addresses):
        left = anyio.current_effective_deadline() - anyio.current_time()
        try:
            with closing_if_failed(socket.socket(family, socket.SOCK_STREAM)) as sock:
                sock.setblocking(False)  # noqa: FBT003 - positional only
                with anyio.fail_after(left / (len(addresses) - tried)):
                    await loop.sock_connect(sock, address)
                return sock
        except OSError as exc:
            failure = exc
    raise failure
