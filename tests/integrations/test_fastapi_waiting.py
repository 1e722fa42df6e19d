"""Requests of FastAPI that wait: their bodies, who hangs up, and a full queue."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations.fastapi import add_locks, get_locks, hold
from tests.integrations.fastapi_apps import started, waiting, with_locks
from tests.integrations.guests import serve_asgi

pytestmark = pytest.mark.asyncio

Numbered = Annotated[Held, hold("order:{id:int}", timeout=0.1)]
Next = Callable[[Request], Awaitable[Response]]


async def test_middlewares_that_give_the_same_body_for_ever_or_once() -> None:
    """A well-known way to read a body twice; it is not to be collected for ever."""
    app = with_locks()

    @app.post("/orders/{id}")
    async def post(request: Request, held: Numbered) -> str:
        held.check()
        return (await request.body()).decode()

    async def repeating(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]

        async def again() -> Message:
            return {"type": "http.request", "body": body}

        await app(scope, again, send)

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [{**await receive(), "more_body": False}]

        async def once() -> Message:
            return messages.pop()

        await app(scope, once, send)

    for outside in (repeating, failing):
        await refused_and_let_in(app, outside)


async def refused_and_let_in(app: FastAPI, outside: ASGIApp) -> None:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(outside)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
            assert (await http.post("/orders/7", content="abc")).json() == "abc"
            async with get_locks(app).mutex("order", 7):
                calling = asyncio.create_task(http.post("/orders/7", content="abc"))
                assert (await calling).status_code == 423


async def test_a_full_queue_is_503() -> None:
    app = with_locks()

    @app.post("/orders/{id}")
    async def post(held: Annotated[Held, hold("order:{id}", max_waiters=1)]) -> str:
        return held.resource

    async with started(app) as http:
        async with get_locks(app).mutex("order", 7):
            first = asyncio.create_task(http.post("/orders/7"))
            await waiting(app, 1)
            second = await asyncio.create_task(http.post("/orders/7"))
            assert second.status_code == 503
        assert (await first).status_code == 200


@pytest.mark.parametrize("outside", [True, False])
async def test_bodies_and_hangups_through_other_middlewares(*, outside: bool) -> None:
    app = FastAPI()

    async def through(request: Request, call_next: Next) -> Response:
        return await call_next(request)

    if outside:
        add_locks(app, connect("memory://"))
        app.middleware("http")(through)
    else:
        app.middleware("http")(through)
        add_locks(app, connect("memory://"))

    @app.post("/orders/{id}")
    async def upload(
        request: Request, held: Annotated[Held, hold("order:{id}")]
    ) -> int:
        held.check()
        return len(await request.body())

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
        )
        async with serve_asgi(app, sock), http:
            async with get_locks(app).mutex("order", 7):
                data = b"x" * 300_000
                sending = asyncio.create_task(http.post("/orders/7", content=data))
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /orders/7 HTTP/1.1\r\nHost: t\r\n")
                writer.write(b"Content-Length: 3\r\n\r\nabc")
                await waiting(app, 2)
                writer.close()
                await waiting(app, 1)
            assert (await sending).json() == len(data)
