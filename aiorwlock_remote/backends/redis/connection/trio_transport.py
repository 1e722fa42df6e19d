"""A connection on trio; imported only where trio runs.

Two system tasks a connection, one reads and one writes what could not be written at
once. They catch everything: an exception in a system task would end the whole run.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import trio

from aiorwlock_remote.backends.redis.addresses import configure_socket
from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.ports import EventLoop

CHUNK = 65536

Stream = trio.SSLStream[trio.SocketStream]


class _TrioTransport(ABC):
    """What plain and TLS connections share: the two tasks and their end."""

    def __init__(self, talk: RespProtocol, host: EventLoop) -> None:
        self._talk = talk
        self._backlog = bytearray()
        self._flushing = False
        self._closed = False
        self._tasks = 2
        self._gone = trio.Event()
        # The writer while it is parked; before its first step it looks by itself.
        self._parked: trio.lowlevel.Task | None = None
        host.spawn(lambda: self._task(self._read))
        host.spawn(lambda: self._task(self._write))

    def write(self, data: bytes) -> None:
        """Leave it to the writer."""
        self._backlog += data
        self._stir()

    def wake(self) -> None:
        """The writer flushes when it is its turn."""
        self._flushing = True
        self._stir()

    def unsent(self) -> int:
        """Bytes the writer has not written."""
        return len(self._backlog)

    def abort(self) -> None:
        """Close at once; the reader ends by that and tells."""
        if not self._closed:
            self._closed = True
            self._close()
            self._stir()

    async def aclose(self) -> None:
        """Close at once and wait for both tasks."""
        self.abort()
        await self._gone.wait()

    def _stir(self) -> None:
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _task(self, function: Callable[[], Awaitable[None]]) -> None:
        failure: Exception | None = None
        try:
            await function()
        except trio.ClosedResourceError:
            pass  # by us
        except Exception as exc:  # noqa: BLE001 - told to whoever waits for answers
            failure = exc
        except BaseException:
            # The run is ending: nobody is left to be told, but the socket is ours.
            self.abort()
            self._tasks = 0
            self._gone.set()
            raise
        self.abort()
        self._tasks -= 1
        if self._tasks == 0:
            self._gone.set()
        self._talk.lost(failure)

    async def _write(self) -> None:
        while not self._closed:
            if self._flushing:
                self._flushing = False
                self._talk.flush()
            if self._backlog:
                data = bytes(self._backlog)
                self._backlog.clear()
                await self._send(data)
            else:
                self._parked = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    @abstractmethod
    async def _read(self) -> None: ...

    @abstractmethod
    async def _send(self, data: bytes) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class PlainTrioTransport(_TrioTransport):
    """A socket of the system, without trio's layers: half the time of a round trip."""

    def __init__(
        self, talk: RespProtocol, host: EventLoop, sock: socket.socket
    ) -> None:
        """Takes over a connected, non-blocking socket."""
        self._socket = sock
        super().__init__(talk, host)

    def write(self, data: bytes) -> None:
        """At once, as far as the socket takes it."""
        if not self._backlog:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reader meets the same end and tells
            if sent == len(data):
                return
            data = data[sent:]
        super().write(data)

    async def _read(self) -> None:
        sock, received = self._socket, self._talk.received
        while not self._closed:
            await trio.lowlevel.wait_readable(sock)
            try:
                data = sock.recv(CHUNK)
            except BlockingIOError:
                continue
            if not data:
                return
            received(data)

    async def _send(self, data: bytes) -> None:
        # What is written meanwhile must not get ahead: it joins the backlog, which
        # keeps the rest of this until it is sent.
        self._backlog[:0] = data
        while self._backlog and not self._closed:
            try:
                sent = self._socket.send(self._backlog)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            else:
                del self._backlog[:sent]

    def _close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()


class TlsTrioTransport(_TrioTransport):
    """TLS by trio's own stream."""

    def __init__(self, talk: RespProtocol, host: EventLoop, stream: Stream) -> None:
        """Takes over a stream after its handshake."""
        self._stream = stream
        super().__init__(talk, host)

    async def _read(self) -> None:
        while data := await self._stream.receive_some(CHUNK):
            self._talk.received(bytes(data))

    async def _send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    def _close(self) -> None:
        self._stream.transport_stream.socket.close()


async def dial(
    options: Options, talk: RespProtocol, host: EventLoop
) -> PlainTrioTransport | TlsTrioTransport:
    """Connect: the addresses of the host race each other."""
    if options.path:
        return PlainTrioTransport(
            talk, host, _taken(await trio.open_unix_socket(options.path))
        )
    context = options.tls_context()
    stream = await trio.open_tcp_stream(options.host, options.port)
    if context is None:
        sock = _taken(stream)
        configure_socket(sock)
        return PlainTrioTransport(talk, host, sock)
    tls = trio.SSLStream(stream, context, server_hostname=options.host)
    try:
        await tls.do_handshake()
    except BaseException as exc:
        stream.socket.close()
        if isinstance(exc, trio.BrokenResourceError) and exc.__cause__ is not None:
            raise exc.__cause__ from None  # what asyncio raises as well
        raise
    return TlsTrioTransport(talk, host, tls)


def _taken(stream: trio.SocketStream) -> socket.socket:
    sock = socket.socket(fileno=stream.socket.detach())
    sock.settimeout(0)
    return sock
