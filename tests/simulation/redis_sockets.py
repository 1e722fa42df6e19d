"""Simulated connections of the library to Redis, of the users' loops and of threads."""

from __future__ import annotations

import asyncio
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
    ThreadsLoop,
)

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.addresses import Server
    from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
    from aiorwlock_remote.backends.redis.options import Options
    from tests.simulation.redis import RedisServers
    from tests.simulation.world import SimulatedProcess

T = TypeVar("T")


class LoopTransport:
    """``Transport`` of a ``RespProtocol`` in the event loop that runs."""

    def __init__(
        self,
        servers: RedisServers,
        process: SimulatedProcess,
        server: Server,
        protocol: RespProtocol,
    ) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._closed = anyio.Event()
        self._wire = Wire(
            *(process, servers.nodes[server], self._in_loop),
            received=protocol.received,
            lost=self._lost,
        )

    def write(self, data: bytes) -> None:
        self._wire.write(data)

    def wake(self) -> None:
        self._loop.call_soon(self._protocol.flush)

    def unsent(self) -> int:
        return 0

    def abort(self) -> None:
        if not self._closed.is_set():
            self._wire.close()
            self._loop.call_soon(self._lost, "closed by us")

    async def aclose(self) -> None:
        self.abort()
        await self._closed.wait()

    def _in_loop(self, function: Callable[[], object], time: float = 0.0) -> None:
        def run() -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(function)

        self._process.run_soon(run, time)

    def _lost(self, why: str) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._protocol.lost(ConnectionResetError(why))


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
            outcome: tuple[str, object]
            try:
                outcome = "set_result", function()
            except Exception as exc:  # noqa: BLE001 - raised in the loop
                outcome = "set_exception", exc
            process.in_loop(partial(tell, *outcome))

        SimulatedThread(process, run, "search")
        found: T = await done
        return found

    async def dial(options: Options, protocol: RespProtocol) -> LoopTransport:
        process, server = world.running_process(), (options.host, options.port)
        await anyio.sleep(servers.time_to_connect(process, server))
        if not servers.can_connect(process, server):
            raise ConnectionRefusedError
        return LoopTransport(servers, process, server, protocol)

    def new_loop() -> ThreadsLoop:
        return ThreadsLoop(world.running_process())

    with ExitStack() as stack:
        for module, name, value in (
            (asyncio_transport, "dial", dial),
            (connector, "run_in_thread", run_in_thread),
            (failover, "run_in_thread", run_in_thread),
            (sentinel, "ask_sentinels", servers.ask_sentinels),
            (asyncio_transport, "RenewalLoop", new_loop),
            (renewal_channels, "Event", SimulatedEvent),
            (renewal_channel, "Lock", SimulatedLock),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
