"""Starlette: endpoints, mounts, websockets."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import httpx
import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.integrations.starlette import (
    add_locks,
    fence_header,
    get_fence,
    get_held,
    get_locks,
    hold,
)
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.asgi_connection import Line, scope_of

pytestmark = pytest.mark.asyncio

numbered = hold("order:{id:int}", timeout=0.1)


@numbered
async def number_handler(request: Request) -> Response:
    return PlainTextResponse(get_held(request).resource)


def app_with(*routes: BaseRoute, store: FaultyMemory | None = None) -> Starlette:
    app = Starlette(routes=routes)
    add_locks(app, connect(store or FaultyMemory()), required=False)
    return app


def client(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_functions_methods_and_mounted_applications() -> None:
    class Orders(HTTPEndpoint):
        @numbered
        async def get(self, request: Request) -> Response:
            return PlainTextResponse(get_held(request).resource)

        async def put(self, request: Request) -> Response:
            return PlainTextResponse(str(get_fence(request)))

    below = Starlette(routes=[Route("/{id}", number_handler)])
    app = app_with(
        Route("/orders/{id}", number_handler),
        Route("/endpoints/{id}", Orders),
        Mount("/below", below),
    )
    paths = ["/orders/007", "/endpoints/7", "/below/7"]
    async with app.router.lifespan_context(app), client(app) as http:
        for path in paths:
            assert (await http.get(path)).text == "order/7"
        async with get_locks(app).mutex("order", 7) as held:
            answers = await asyncio.gather(
                *(asyncio.create_task(http.get(path)) for path in paths)
            )
            headers = fence_header(held)
            fenced = await http.put("/endpoints/7", headers=headers)
            assert fenced.text == str(held.fence)
        for answer in answers:
            assert answer.status_code == 423
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["retry-after"] == "1"
        assert (await http.get("/orders/x")).status_code == 404
        assert (await http.put("/endpoints/7")).status_code == 400


async def test_the_store_dies_in_the_middle_of_a_request() -> None:
    store = FaultyMemory()

    @hold("order:{id:int}", timeout=0.1, lease=0.4)
    async def work(request: Request) -> Response:
        store.link.down = True
        await get_held(request).extend()
        raise AssertionError

    app = app_with(Route("/orders/{id}", work), store=store)
    async with app.router.lifespan_context(app), client(app) as http:
        assert (await http.get("/orders/7")).status_code == 503
        store.link.down = False


async def test_a_template_that_does_not_fit_is_refused_at_the_start() -> None:
    app = app_with(Route("/orders/{other}", number_handler))
    with pytest.raises(ConfigurationError, match=r"needs \{id\}"):
        async with app.router.lifespan_context(app):
            pytest.fail("started")
    with pytest.raises(ConfigurationError, match="already"):
        add_locks(app, connect("memory://"))
    with pytest.raises(ConfigurationError, match="no coroutine function"):
        numbered(lambda request: request)


async def test_two_holds_give_the_inner_one() -> None:
    @hold("shop:{shop}")
    @numbered
    async def both(request: Request) -> Response:
        kinds = [seen.resource_type async for seen in get_locks(request).list()]
        return JSONResponse([get_held(request).resource, *sorted(kinds)])

    async def unheld(request: Request) -> Response:
        with pytest.raises(ConfigurationError, match="no hold"):
            get_held(request)
        return Response()

    app = app_with(Route("/{shop}/{id}", both), Route("/", unheld))
    async with app.router.lifespan_context(app), client(app) as http:
        assert (await http.get("/a/7")).json() == ["order/7", "order", "shop"]
        assert (await http.get("/")).status_code == 200


@pytest.mark.parametrize("answers", [True, False])
async def test_a_websocket(answers: bool) -> None:
    """Refused by a status, or by a code where the server sends no status."""

    @numbered
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(get_held(websocket).resource)
        await websocket.close()

    app = app_with(WebSocketRoute("/orders/{id}", talk))
    extensions: dict[str, object] = {"websocket.http.response": {}} if answers else {}

    async def call(path: str) -> list[object]:
        line = Line({"type": "websocket.connect"})
        scope = scope_of(path, type="websocket", subprotocols=[])
        await line.calls(app, {**scope, "extensions": extensions})
        return [
            message.get("text", message.get("status", message.get("code")))
            for message in line.answer
        ]

    async with app.router.lifespan_context(app):
        assert await call("/orders/007") == [None, "order/7", 1000]
        async with get_locks(app).mutex("order", 7):
            refused = await asyncio.create_task(call("/orders/7"))
        assert refused == ([423, None] if answers else [1013])
        assert await call("/orders/x") == [1008]


Wrap = Callable[[Callable[..., object]], Callable[..., object]]


@pytest.mark.parametrize("wrap", [functools.partial, lambda endpoint: endpoint])
async def test_an_endpoint_in_a_partial(wrap: Wrap) -> None:
    app = app_with(Route("/orders/{id}", wrap(number_handler)))
    async with app.router.lifespan_context(app), client(app) as http:
        assert (await http.get("/orders/7")).text == "order/7"
