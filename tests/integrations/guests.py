"""The same application in both frameworks, served for real, and its shared account."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import trio
import uvicorn
from aiohttp import web

from aiorwlock_remote import LockInfo, Locks, connect
from tests.integrations import aiohttp_site, fastapi_site
from tests.integrations.account import Account

SERVERS = ("fastapi-h11", "fastapi-httptools", "fastapi-hypercorn", "aiohttp")
WITHIN = 60.0


@dataclass
class Guest:
    """A client of the application, and a look at its store from outside."""

    http: httpx.AsyncClient
    locks: Locks
    account: Account
    port: int
    lines: list[asyncio.StreamWriter] = field(default_factory=list)

    async def calls(self, method: str, path: str) -> asyncio.StreamWriter:
        """Send a request by hand; closing what comes back is hanging up."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0"
        writer.write(f"{head}\r\n\r\n".encode())
        await writer.drain()
        self.lines.append(writer)
        return writer

    async def info(self, invoice: int = 7) -> LockInfo:
        return await self.locks.mutex("invoice", invoice).info()

    async def held(self, invoice: int = 7) -> LockInfo:
        """Wait until somebody holds it."""
        await until(lambda: self._is(invoice, lambda seen: seen.locked))
        return await self.info(invoice)

    async def queued(self, count: int, invoice: int = 7) -> None:
        """Wait until so many tasks wait for it."""

        def reached(seen: LockInfo) -> bool:
            return sum(queued.waiting for queued in seen.queue) == count

        await until(lambda: self._is(invoice, reached))

    async def nothing_left(self) -> None:
        """Wait until the store knows of no holder and no place."""

        async def nothing() -> bool:
            return [seen async for seen in self.locks.list()] == []

        await until(nothing)

    async def _is(self, invoice: int, reached: Callable[[LockInfo], bool]) -> bool:
        return reached(await self.info(invoice))


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again: a store's contents give no event."""
    deadline = time.monotonic() + WITHIN
    while not await reached():
        assert time.monotonic() < deadline, "not reached in time"
        await anyio.sleep(0.01)


@asynccontextmanager
async def served(
    server: str, url: str, *, outside: str = "", lease: float = 30
) -> AsyncIterator[Guest]:
    """``outside``: the store's URL for the one who looks, if it is another."""
    account = Account()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        connecting = connect(url, lease=lease)
        if server == "aiohttp":
            app = aiohttp_site.make(connecting, account)
            running = serve_aiohttp(app, sock)
        else:
            asgi = fastapi_site.make(connecting, account)
            running = serve_asgi(asgi, sock, server.removeprefix("fastapi-"))
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=0)
        async with (
            running,
            connect(outside or url) as locks,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                limits=limits,
                timeout=WITHIN,
                trust_env=False,
            ) as http,
        ):
            guest = Guest(http, locks, account, port)
            yield guest
            for line in guest.lines:
                line.close()


@asynccontextmanager
async def serve_asgi(
    app: Any,  # noqa: ANN401 - every server has a type of its own for that
    sock: socket.socket,
    by: str = "h11",
) -> AsyncIterator[None]:
    """By hypercorn, on asyncio or trio, or by uvicorn with one of its parsers.

    Raises what the application raises when it starts.
    """
    if by.startswith("hypercorn"):
        async with serve_hypercorn(app, sock, on_trio=by == "hypercorn-trio"):
            yield
        return
    config = uvicorn.Config(app, http=by, log_level="critical", ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:

        async def started() -> bool:
            return server.started or task.done()

        await until(started)
        assert server.started
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([task])


@asynccontextmanager
async def serve_hypercorn(
    app: Any,  # noqa: ANN401
    sock: socket.socket,
    *,
    on_trio: bool,
) -> AsyncIterator[None]:
    """On this loop, or on trio in a thread of its own."""
    config = hypercorn.config.Config()
    config.bind = [f"fd://{os.dup(sock.fileno())}"]
    config.errorlog, config.graceful_timeout = None, 1
    # Also how long it waits for a request on a new connection: on a machine that stands
    # still for some seconds it would hang up.
    config.keep_alive_timeout = WITHIN
    sock.listen()  # who comes early waits, in place of being refused
    if not on_trio:
        stop = asyncio.Event()
        serving = hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait)
        task = asyncio.create_task(serving)
        try:
            yield
        finally:
            stop.set()
            await task
        return
    started: Future[Callable[[], None]] = Future()

    async def serve() -> None:
        stop, token = trio.Event(), trio.lowlevel.current_trio_token()
        started.set_result(lambda: token.run_sync_soon(stop.set))
        await hypercorn.trio.serve(app, config, shutdown_trigger=stop.wait)

    task = asyncio.create_task(asyncio.to_thread(trio.run, serve))
    stop_it = await asyncio.wrap_future(started)
    try:
        yield
    finally:
        stop_it()
        await task


@asynccontextmanager
async def serve_aiohttp(
    app: web.Application, sock: socket.socket
) -> AsyncIterator[None]:
    """By aiohttp's own server, with the setting that the documentation names."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, sock, backlog=512).start()
        yield
    finally:
        await runner.cleanup()
