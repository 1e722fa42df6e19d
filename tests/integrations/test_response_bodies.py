"""Bodies under real servers: whole, whatever middlewares are in the way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI, Request, Response
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import aiorwlock_remote.integrations.aiohttp as for_aiohttp
import aiorwlock_remote.integrations.fastapi as for_fastapi
from aiorwlock_remote import Held, Locks, connect
from tests.integrations.guests import WITHIN, serve_aiohttp, serve_asgi, until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

Next = Callable[[Request], Awaitable[Response]]

SERVERS = ("h11", "httptools", "hypercorn", "hypercorn-trio")
ORDERS = [*permutations(("locks", "pure", "base")), ("locks", "pure", "around")]
"""As they are added; ``around``: what add_locks does not know of, outside of all."""
SIZES = (0, 3, 200_000)
WAYS = ("plain", "chunked", "multipart", "slow", "late")
OPTIONS: Any = {"timeout": 300}


class Pure:
    """A middleware that sees every message."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def received() -> Message:
            return await receive()

        async def sent(message: Message) -> None:
            await send(message)

        await self.app(scope, received, sent)


async def through(request: Request, call_next: Next) -> Response:
    return await call_next(request)


def asgi(url: str, order: tuple[str, ...]) -> ASGIApp:
    """Answers with the hash of the body."""
    app = FastAPI()
    for one in order:
        if one == "locks":
            for_fastapi.add_locks(app, connect(url))
        elif one == "pure":
            app.add_middleware(Pure)
        elif one == "base":
            app.middleware("http")(through)

    @app.post("/stream/{id}")
    async def stream(
        request: Request,
        held: Annotated[Held, for_fastapi.hold("body:{id}", **OPTIONS)],
    ) -> str:
        digest = sha256()
        async for part in request.stream():
            digest.update(part)
            held.check()
        return digest.hexdigest()

    @app.post("/whole/{id}", dependencies=[for_fastapi.hold("body:{id}", **OPTIONS)])
    async def whole(request: Request) -> str:
        return sha256(await request.body()).hexdigest()

    return BaseHTTPMiddleware(app, through) if "around" in order else app


def aio(url: str) -> web.Application:
    """The same in aiohttp."""

    @for_aiohttp.hold("body:{id}", **OPTIONS)
    async def stream(request: web.Request) -> web.Response:
        digest = sha256()
        async for part in request.content.iter_any():
            digest.update(part)
        return web.json_response(digest.hexdigest())

    @for_aiohttp.hold("body:{id}", **OPTIONS)
    async def whole(request: web.Request) -> web.Response:
        return web.json_response(sha256(await request.read()).hexdigest())

    @web.middleware
    async def around(request: web.Request, handler: Any) -> Any:  # noqa: ANN401
        return await handler(request)

    app = web.Application(middlewares=[around], client_max_size=2**22)
    for_aiohttp.add_locks(app, connect(url))
    app.router.add_post("/stream/{id}", stream)
    app.router.add_post("/whole/{id}", whole)
    return app


@asynccontextmanager
async def served(server: str, order: tuple[str, ...], url: str) -> AsyncIterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        running = (
            serve_aiohttp(aio(url), sock)
            if server == "aiohttp"
            else serve_asgi(asgi(url, order), sock, server)
        )
        async with running:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"


def request_of(
    http: httpx.AsyncClient, path: str, way: str, data: bytes, go_on: asyncio.Event
) -> tuple[httpx.Request, str]:
    """What is sent, and the hash of its body.

    ``slow`` sends half of it at first, ``late`` nothing until its handler runs.
    """

    async def parts() -> AsyncIterator[bytes]:
        middle = len(data) // 2
        if way == "late":
            await go_on.wait()
        yield data[:middle]
        if way == "slow":
            await go_on.wait()
        yield data[middle:]

    if way in ("plain", "multipart"):
        given: dict[str, Any] = {"content": data}
        if way == "multipart":
            given = {"files": {"file": ("name", data)}, "data": {"field": "value"}}
        request = http.build_request("POST", path, **given)
        return request, sha256(request.read()).hexdigest()
    length = {"Content-Length": str(len(data))} if way != "chunked" else {}
    request = http.build_request("POST", path, content=parts(), headers=length)
    return request, sha256(data).hexdigest()


async def come_whole(http: httpx.AsyncClient, locks: Locks) -> None:
    """Bodies that get in at once, and bodies that wait for somebody before."""
    go_on = asyncio.Event()
    wanted: list[str] = []
    sending: list[asyncio.Task[httpx.Response]] = []
    async with AsyncExitStack() as others:
        waiting: list[str] = []
        inside: list[str] = []
        for number, size in enumerate(SIZES):
            data = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
            for way in WAYS:
                for waits in (False, True):
                    name = f"{way}-{size}-{waits}"
                    if waits:
                        waiting.append(name)
                        await others.enter_async_context(locks.mutex("body", name))
                    elif size and way in ("slow", "late"):
                        inside.append(name)
                    path = f"/{('stream', 'whole')[number % 2]}/{name}"
                    request, digest = request_of(http, path, way, data, go_on)
                    wanted.append(digest)
                    sending.append(asyncio.create_task(http.send(request)))

        async def all_there() -> bool:
            for task in sending:
                if task.done():
                    # Or nobody would say why it is not there.
                    assert task.result().status_code == HTTPStatus.OK
            seen = {name: await locks.mutex("body", name).info() for name in names}
            return all(seen[name].queue for name in waiting) and all(
                seen[name].locked for name in inside
            )

        names = (*waiting, *inside)
        await until(all_there)
    go_on.set()
    answers = await asyncio.gather(*sending)
    assert [answer.status_code for answer in answers] == [200] * len(wanted)
    assert [answer.json() for answer in answers] == wanted


CASES = [(server, order) for server in SERVERS for order in ORDERS]


@pytest.mark.parametrize(
    ("server", "order"),
    [*CASES, ("aiohttp", ())],
    ids=lambda part: "-".join(part) if isinstance(part, tuple) else part,
)
async def test_bodies_come_whole_through_every_order(
    server: str, order: tuple[str, ...], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    async with (
        served(server, order, url) as base,
        connect(url) as locks,
        httpx.AsyncClient(base_url=base, timeout=WITHIN, trust_env=False) as http,
    ):
        await come_whole(http, locks)
        assert [seen async for seen in locks.list()] == []
