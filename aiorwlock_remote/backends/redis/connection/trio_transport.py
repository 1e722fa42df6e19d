"""Transports on trio; imported only where trio runs.

Each connection has two system tasks: one reads, one writes what could not be written at
once. Both catch all errors, because an exception in a system task ends the whole run.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import trio

from aiorwlock_remote.backends.redis.addresses import configure_socket
from aiorwlock_remote.backends.redis.connection.protocol import READ_SIZE, RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.ports import EventLoop

Stream = trio.SSLStream[trio.SocketStream]


class _TrioTransport(ABC):
    def __init__(self, protocol: RespProtocol, loop: EventLoop) -> None:
        self._protocol = protocol
        self._backlog = bytearray()
        self._flush_wanted = False
        self._closed = False
        self._tasks = 2
        self._ended = trio.Event()
        # The writer's task while it sleeps. Before its first step there is none, and
        # none is needed: the writer looks at the backlog before it sleeps.
        self._sleeping: trio.lowlevel.Task | None = None
        loop.spawn(lambda: self._task(self._read))
        loop.spawn(lambda: self._task(self._write))

    def write(self, data: bytes) -> None:
        self._backlog += data
        self._wake_writer()

    def wake(self) -> None:
        self._flush_wanted = True
        self._wake_writer()

    def unsent(self) -> int:
        return len(self._backlog)

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._close()
            self._wake_writer()

    async def aclose(self) -> None:
        self.abort()
        await self._ended.wait()

    def _wake_writer(self) -> None:
        task, self._sleeping = self._sleeping, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _task(self, function: Callable[[], Awaitable[None]]) -> None:
        failure: Exception | None = None
        try:
            await function()
        except trio.ClosedResourceError:
            pass  # closed by `abort`
        except Exception as exc:  # noqa: BLE001 - the calls in flight fail with it
            failure = exc
        except BaseException:
            # The run is ending, and no caller is left to get an error. The socket must
            # be closed all the same (test_a_run_that_ends_first_closes_the_connection).
            self.abort()
            self._tasks = 0
            self._ended.set()
            raise
        self.abort()
        self._tasks -= 1
        if self._tasks == 0:
            self._ended.set()
        self._protocol.lost(failure)

    async def _write(self) -> None:
        while not self._closed:
            if self._flush_wanted:
                self._flush_wanted = False
                self._protocol.flush()
            if self._backlog:
                data = bytes(self._backlog)
                self._backlog.clear()
                await self._send(data)
            else:
                self._sleeping = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._cancelled)

    def _cancelled(self, _: object) -> trio.lowlevel.Abort:
        self._sleeping = None
        return trio.lowlevel.Abort.SUCCEEDED

    @abstractmethod
    async def _read(self) -> None: ...

    @abstractmethod
    async def _send(self, data: bytes) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class PlainTrioTransport(_TrioTransport):
    """Transport over a plain socket; trio's streams would double the reply time."""

    def __init__(
        self, protocol: RespProtocol, loop: EventLoop, sock: socket.socket
    ) -> None:
        """Take over ``sock``, which must be connected and non-blocking."""
        self._socket = sock
        super().__init__(protocol, loop)

    def write(self, data: bytes) -> None:
        if not self._backlog:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reader meets the same error and reports the loss
            if sent == len(data):
                return
            data = data[sent:]
        super().write(data)

    async def _read(self) -> None:
        sock, protocol = self._socket, self._protocol
        while not self._closed:
            await trio.lowlevel.wait_readable(sock)
            try:
                nbytes = sock.recv_into(protocol.get_buffer())
            except BlockingIOError:
                continue
            if not nbytes:
                return
            protocol.buffer_updated(nbytes)

    async def _send(self, data: bytes) -> None:
        # The rest of `data` stays in the backlog until it is sent: what is written
        # meanwhile joins it there and cannot get ahead
        # (test_unsent_bytes_are_not_overtaken).
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
    """Transport over a TLS stream of trio."""

    def __init__(self, protocol: RespProtocol, loop: EventLoop, stream: Stream) -> None:
        """Take over ``stream`` after its TLS handshake."""
        self._stream = stream
        super().__init__(protocol, loop)

    async def _read(self) -> None:
        while data := await self._stream.receive_some(READ_SIZE):
            self._protocol.received(bytes(data))

    async def _send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    def _close(self) -> None:
        self._stream.transport_stream.socket.close()


async def dial(
    options: Options, protocol: RespProtocol, loop: EventLoop
) -> PlainTrioTransport | TlsTrioTransport:
    """Connect by Happy Eyeballs: trio tries the addresses of the host in parallel."""
    if options.path:
        stream = await trio.open_unix_socket(options.path)
        return PlainTrioTransport(protocol, loop, _socket_of(stream))
    context = options.tls_context()
    stream = await trio.open_tcp_stream(options.host, options.port)
    if context is None:
        sock = _socket_of(stream)
        configure_socket(sock)
        return PlainTrioTransport(protocol, loop, sock)
    tls = trio.SSLStream(stream, context, server_hostname=options.host)
    try:
        await tls.do_handshake()
    except BaseException as exc:
        stream.socket.close()
        if isinstance(exc, trio.BrokenResourceError) and exc.__cause__ is not None:
            raise exc.__cause__ from None  # the error that asyncio raises as well
        raise
    return TlsTrioTransport(protocol, loop, tls)


def _socket_of(stream: trio.SocketStream) -> socket.socket:
    sock = socket.socket(fileno=stream.socket.detach())
    sock.settimeout(0)
    return sock
