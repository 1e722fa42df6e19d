"""Simulated sockets for the library's Redis connections, of the loop and of threads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import anyio

from aiorwlock_remote.backends.redis import failover, sentinel
from aiorwlock_remote.backends.redis.cluster import renewal_channel
from aiorwlock_remote.backends.redis.connection import (
    asyncio_transport,
    connector,
    renewal_channels,
)
from tests.simulation.redis_server import Wire
from tests.simulation.world import (
    SimulatedEvent,
    SimulatedLock,
    SimulatedThread,
    current_thread,
)

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.addresses import Server
    from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
    from aiorwlock_remote.backends.redis.options import Options
    from tests.simulation.redis import RedisServers
    from tests.simulation.world import SimulatedProcess

T = TypeVar("T")


class LoopTransport:
    """``Transport`` of a ``RespProtocol`` in a simulated event loop."""

    def __init__(
        self,
        servers: RedisServers,
        process: SimulatedProcess,
        server: Server,
        protocol: RespProtocol,
    ) -> None:
        self._process = process
        self._protocol = protocol
        self._closed = anyio.Event()
        self._wire = Wire(
            *(process, servers.nodes[server], process.in_loop),
            received=protocol.received,
            lost=self._lost,
        )

    def write(self, data: bytes) -> None:
        self._wire.write(data)

    def wake(self) -> None:
        self._process.loop.call_soon(self._protocol.flush)

    def unsent(self) -> int:
        return 0

    def abort(self) -> None:
        if not self._closed.is_set():
            self._wire.close()
            self._process.loop.call_soon(self._lost, "closed by us")

    async def aclose(self) -> None:
        self.abort()
        await self._closed.wait()

    def _lost(self, why: str) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._protocol.lost(ConnectionResetError(why))


class BlockingSocket:
    """The methods of ``socket.socket`` that a ``BlockingConnection`` uses."""

    servers: RedisServers

    def __init__(self, family: int, kind: int) -> None:
        del family, kind
        self._process = self.servers.world.running_process()
        self._wire: Wire | None = None
        self._data = bytearray()
        self._ended = False
        self._timeout: float | None = None
        self._waiting: list[SimulatedThread] = []

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def connect(self, server: Server) -> None:
        self._sleep(self.servers.time_to_connect(self._process, server))
        if not self.servers.can_connect(self._process, server):
            raise ConnectionRefusedError
        self._wire = Wire(
            *(self._process, self.servers.nodes[server], self._process.run_soon),
            received=self._received,
            lost=self._lost,
        )

    def sendall(self, data: bytes) -> None:
        if self._wire is None or not self._wire.is_open:
            raise BrokenPipeError
        self._wire.write(data)

    def recv(self, size: int) -> bytes:
        if not self._data and not self._ended:
            if self._timeout == 0:
                raise BlockingIOError
            self._sleep(None)
        if self._data:
            data = bytes(self._data[:size])
            del self._data[:size]
            return data
        if self._ended:
            return b""
        raise TimeoutError

    def shutdown(self, how: int) -> None:
        del how
        self._lost("shut down")

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._ended = True

    def _sleep(self, seconds: float | None) -> None:
        # Until there is something to read, or for so long; never beyond the timeout.
        thread = current_thread()
        self._waiting.append(thread)
        limits = [one for one in (seconds, self._timeout) if one is not None]
        thread.wait(min(limits, default=None))
        self._waiting.remove(thread)
        if (
            seconds is not None
            and self._timeout is not None
            and seconds > self._timeout
        ):
            raise TimeoutError

    def _received(self, data: bytes) -> None:
        self._data += data
        self._wake()

    def _lost(self, why: str) -> None:
        del why
        if self._wire is not None:
            self._wire.close()
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        for thread in self._waiting:
            thread.wake()


class _Sockets:
    """The module ``socket`` for a ``BlockingConnection``."""

    SHUT_RDWR = socket.SHUT_RDWR
    SOCK_STREAM = socket.SOCK_STREAM
    AF_UNIX = socket.AF_UNIX

    def __init__(self, servers: RedisServers) -> None:
        self.socket = type("Socket", (BlockingSocket,), {"servers": servers})


class _Resolver:
    def addresses(self, server: Server, timeout: float) -> list[tuple[int, Server]]:
        del timeout
        return [(socket.AF_INET, server)]


@contextmanager
def simulated_sockets(servers: RedisServers) -> Iterator[None]:
    """Context manager: the library's Redis connections lead to ``servers``."""
    world = servers.world

    async def run_in_thread(function: Callable[[], T]) -> T:
        process = world.running_process()
        done: Any = process.loop.create_future()

        def tell(method: str, value: object) -> None:
            if not done.done():
                getattr(done, method)(value)

        def run() -> None:
            told: tuple[str, object]
            try:
                told = "set_result", function()
            except Exception as exc:  # noqa: BLE001 - raised in the loop
                told = "set_exception", exc
            process.in_loop(partial(tell, *told))

        SimulatedThread(process, run, "search")
        found: T = await done
        return found

    async def dial(options: Options, protocol: RespProtocol) -> LoopTransport:
        process, server = world.running_process(), (options.host, options.port)
        await anyio.sleep(servers.time_to_connect(process, server))
        if not servers.can_connect(process, server):
            raise ConnectionRefusedError
        return LoopTransport(servers, process, server, protocol)

    with ExitStack() as stack:
        for module, name, value in (
            (asyncio_transport, "dial", dial),
            (connector, "run_in_thread", run_in_thread),
            (failover, "run_in_thread", run_in_thread),
            (sentinel, "ask_sentinels", servers.ask_sentinels),
            (renewal_channels, "socket", _Sockets(servers)),
            (renewal_channels, "DnsResolver", _Resolver),
            (renewal_channels, "configure_socket", lambda _: None),
            (renewal_channels, "Event", SimulatedEvent),
            (renewal_channel, "Lock", SimulatedLock),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
