"""What is aiohttp's own: views, applications in applications, contexts."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, cast

import aiohttp
import httpx
import pytest
from aiohttp import web

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.integrations.aiohttp import add_locks, get_held, get_locks, hold
from tests.integrations.guests import serve_aiohttp

pytestmark = pytest.mark.asyncio

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
numbered = hold("order:{id:int}", timeout=0.1)


@asynccontextmanager
async def started(app: web.Application) -> AsyncIterator[httpx.AsyncClient]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with (
            serve_aiohttp(app, sock),
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
        ):
            yield http


def with_locks() -> web.Application:
    app = web.Application()
    add_locks(app, connect("memory://"))
    return app


async def refused(app: web.Application) -> str:
    with pytest.raises(ConfigurationError) as caught:
        async with started(app):
            pytest.fail("started")
    return str(caught.value)


@numbered
async def number_handler(request: web.Request) -> web.Response:
    return web.Response(text=get_held(request).resource)


@pytest.mark.parametrize("path", ["/orders", "/orders/{order}", r"/{x:\d+}"])
async def test_a_part_that_the_path_does_not_have(path: str) -> None:
    app = with_locks()
    app.router.add_get(path, number_handler)
    assert "needs {id}" in await refused(app)


async def test_views_and_decorators_above_are_examined_too() -> None:
    class View(web.View):
        @numbered
        async def get(self) -> web.Response:
            return await number_handler(self.request)

    app = with_locks()
    app.router.add_view("/views/{other}", View)
    assert "'/views/{other}' does not have it" in await refused(app)


async def test_above_the_routes_decorator_it_would_hold_nothing() -> None:
    """The route has the handler as it was before."""
    routes = web.RouteTableDef()

    @hold("order:{id:int}")
    @routes.get("/orders/{id}")
    async def pay(_: web.Request) -> web.Response:
        raise AssertionError

    app, inner = with_locks(), web.Application()
    inner.add_routes(routes)
    app.add_subapp("/inner", inner)
    assert "hold below the route's decorator" in await refused(app)


async def test_a_handler_with_and_without_a_hold() -> None:
    async def show(_: web.Request) -> web.Response:
        return web.Response(text="shown")

    held = hold("order:{id:int}")(show)

    @wraps(held)
    async def passed(request: web.Request) -> web.StreamResponse:
        return await held(request)

    app = with_locks()
    app.router.add_get("/orders/{id}", passed)
    app.router.add_get("/plain/{id}", show)
    async with started(app) as http:
        for path in ("/orders/7", "/plain/7"):
            assert (await http.get(path)).text == "shown"


async def test_two_applications_with_and_without_a_hold() -> None:
    async def show(_: web.Request) -> web.Response:
        return web.Response(text="shown")

    held = hold("order:{id:int}")(show)
    for handler in (held, show):
        app = with_locks()
        app.router.add_get("/orders/{id}", handler)
        async with started(app) as http:
            assert (await http.get("/orders/7")).text == "shown"


async def test_applications_in_applications_share_the_locks_and_the_answers() -> None:
    app, below = with_locks(), web.Application()
    below.router.add_get(r"/orders/{id:\d+}", number_handler)
    app.add_subapp("/shop", below)
    async with started(app) as http:
        assert (await http.get("/shop/orders/007")).text == "order/7"
        async with get_locks(app).mutex("order", 7):
            answer = await http.get("/shop/orders/7")
        assert answer.status_code == 423
        assert answer.headers["content-type"].startswith("application/problem+json")
    bad = web.Application()
    bad.router.add_get("/orders", number_handler)
    app = with_locks()
    app.add_subapp("/shop", bad)
    assert "needs {id}" in await refused(app)


async def test_two_holds_give_the_inner_one() -> None:
    app = with_locks()

    @hold("shop:{shop}")
    @numbered
    async def both(request: web.Request) -> web.Response:
        kinds = [seen.resource_type async for seen in get_locks(request).list()]
        return web.json_response([get_held(request).resource, *sorted(kinds)])

    app.router.add_get("/{shop}/{id}", both)
    async with started(app) as http:
        assert (await http.get("/a/7")).json() == ["order/7", "order", "shop"]


async def test_methods_of_any_class_and_what_is_called_like_a_function() -> None:
    async def named(request: web.Request, user: str = "") -> web.Response:
        return web.Response(text=user + get_held(request).resource)

    async def called(user: str, request: web.Request) -> web.Response:
        return await named(request, user)

    class Orders:
        @numbered
        async def get(self, request: web.Request) -> web.Response:
            return await named(request)

        async def __call__(self, request: web.Request) -> web.Response:
            return await named(request)

    app = with_locks()
    app.router.add_get("/methods/{id}", Orders().get)
    app.router.add_get("/objects/{id}", numbered(Orders()))
    app.router.add_get("/outside/{id}", numbered(partial(called, "joe ")))
    app.router.add_get("/inside/{id}", partial(numbered(called), "ann "))
    async with started(app) as http:
        for path, text in (
            ("/methods/007", "order/7"),
            ("/objects/7", "order/7"),
            ("/outside/7", "joe order/7"),
            ("/inside/7", "ann order/7"),
        ):
            assert (await http.get(path)).text == text
        async with get_locks(app).mutex("order", 7):
            assert (await http.get("/methods/7")).status_code == 423
    app = with_locks()
    app.router.add_get("/methods", Orders().get)
    assert "needs {id}" in await refused(app)


async def test_only_coroutine_functions() -> None:
    def plain(_: web.Request) -> web.Response:
        return web.Response()

    async def parts(_: web.Request) -> AsyncIterator[bytes]:
        yield b""

    class View(web.View):
        async def get(self) -> web.Response:
            return web.Response()

    bad: Any
    for bad in (plain, parts, View, None, 5, "text", lambda _: None):
        with pytest.raises(ConfigurationError, match="no coroutine function"):
            numbered(bad)
    with pytest.raises(ConfigurationError, match="without a request"):
        await cast("Any", number_handler)(5)


async def test_options_that_do_not_go_with_the_locks_are_no_missing_page() -> None:
    app = web.Application()
    add_locks(app, connect("memory://", lease=2))
    app.router.add_get("/{id}", hold("order:{id:int}", margin=5)(number_handler))
    async with started(app) as http:
        assert (await http.get("/7")).status_code == 500
        assert (await http.get("/x")).status_code == 404


async def test_around_the_users_own_context() -> None:
    seen: list[str] = []

    async def mine(app: web.Application) -> AsyncIterator[None]:
        async with get_locks(app).mutex("start", 1) as held:
            seen.append(held.resource)
            yield
            held.check()
        seen.append("stopped")

    app = web.Application()
    app.cleanup_ctx.append(mine)
    add_locks(app, connect("memory://"))
    async with started(app):
        assert seen == ["start/1"]
    assert seen == ["start/1", "stopped"]


async def test_locks_are_added_once() -> None:
    app = web.Application()
    add_locks(app, connect("memory://"))
    with pytest.raises(ConfigurationError, match="already"):
        add_locks(app, connect("memory://"))


@pytest.mark.parametrize("given", ["sqlite:///x.db", connect, None], ids=type)
async def test_add_locks_without_connect_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"add_locks\(app, connect\(…\)\)"):
        add_locks(web.Application(), given)  # type: ignore[arg-type]


async def test_without_locks_or_without_a_hold_it_is_a_bug() -> None:
    async def unheld(request: web.Request) -> web.Response:
        with pytest.raises(ConfigurationError, match="no hold"):
            get_held(request)
        with pytest.raises(ConfigurationError, match="no locks"):
            get_locks(request)
        return web.Response()

    app = web.Application()
    app.router.add_get("/", unheld)
    app.router.add_get("/{id}", number_handler)
    async with started(app) as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/7")).status_code == 500


async def test_the_handler_keeps_its_name_and_signature() -> None:
    assert number_handler.__name__ == "number_handler"
    assert hold("a:b", mode="read")(number_handler).__doc__ == number_handler.__doc__


@pytest.mark.parametrize("ends", ["by itself", "with a code"])
async def test_a_websocket_whose_lock_is_lost(ends: str) -> None:
    """Its client learns that it is not at its end, unless the handler says so."""

    @numbered
    async def talk(request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        locks = get_locks(request)
        async for seen in locks.list():
            await locks.force_release(seen, reason="test")
        try:
            await get_held(request).extend()
        finally:
            if ends == "with a code":
                await ws.close(code=4000)
        return ws

    app = with_locks()
    app.router.add_get("/{id}", talk)
    async with started(app) as http, aiohttp.ClientSession() as session:
        url = str(http.base_url.join("/7"))
        async with session.ws_connect(url) as ws:
            assert (await ws.receive()).type is aiohttp.WSMsgType.CLOSE
            assert ws.close_code == (1013 if ends == "by itself" else 4000)


async def test_a_charset_that_names_another_lock() -> None:
    """``request.json()`` of aiohttp decodes as the client says, others do not.

    In UTF-7, ``+AGk-d`` is ``id``, and of two members the last one counts.
    """

    @hold("order:{body.id:int}")
    async def post(request: web.Request) -> web.Response:
        read = (await request.json())["id"]
        return web.json_response([get_held(request).resource, int(read)])

    app = with_locks()
    app.router.add_post("/eu", post)
    kind = "content-type"
    async with started(app) as http:
        for body, charset, status in (
            (b'{"id": 7, "+AGk-d": 8}', "utf-7", 422),
            (b'{"id": 7, "x": "\xe9"}', "latin-1", 422),
            ('{"id": 7, "x": "\u00e9"}'.encode(), "latin-1", 200),
            (b'{"id": 7}', "utf-16", 422),
            (b'{"id": 7}', "no-such", 422),
            (b'{"id": 7}', "utf-7", 200),
        ):
            headers = {kind: f"application/json; charset={charset}"}
            answer = await http.post("/eu", content=body, headers=headers)
            assert answer.status_code == status, (body, charset)
            assert status != 200 or answer.json() == ["order/7", 7]
