"""The same application in each web framework, in this process."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import httpx
import litestar
from aiohttp import web
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import FastAPI
from flask import Flask
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message

from aiorwlock_remote import Held, Locks, connect, sync
from aiorwlock_remote.integrations import aiohttp as of_aiohttp
from aiorwlock_remote.integrations import fastapi as of_fastapi
from aiorwlock_remote.integrations import flask as of_flask
from aiorwlock_remote.integrations import litestar as of_litestar
from aiorwlock_remote.integrations import starlette as of_starlette
from aiorwlock_remote.integrations.django import views as of_django
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.guests import serve_aiohttp
from tests.recipes.django_settings import configure

configure()

GET_AND_POST = ["GET", "POST"]
TEMPLATES = {
    "/path/{id}": "order:{id}",
    "/number/{id}": "order:{id:int}",
    "/query": "order:{query.id:int}",
    "/name": "order:{query.name:str}",
    "/body": "order:{body.id:int}",
    "/waits/{id}": "order:{id:int}",
    "/lost/{id}": "order:{id:int}",
}
"""Each application has a handler for each, ``/fence``, which reads the header,
``/ready`` for the health of the store, and ``/unheld``, which asks for a lock without.
"""


@dataclass
class WebApp:
    """An application that runs, for requests of httpx, or in its own protocol."""

    app: Any
    speaks: Literal["asgi", "wsgi", "http"] = "asgi"
    stop_waiting: Callable[[], object] | None = None
    """What SIGTERM does; None: requests that wait are those of the server's threads."""
    port: int = 0

    def client(self) -> httpx.AsyncClient:
        url = f"http://127.0.0.1:{self.port}" if self.port else "http://test"
        transport: httpx.AsyncBaseTransport | None = None
        if self.speaks == "asgi":
            transport = httpx.ASGITransport(self.app)
        elif self.speaks == "wsgi":
            transport = WSGIInThread(self.app)
        return httpx.AsyncClient(
            transport=transport, base_url=url, trust_env=False, timeout=60
        )


class WSGIInThread(httpx.AsyncBaseTransport):
    """Synchronous locks refuse a thread in which an event loop runs."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 - each has own types
        self._transport = httpx.WSGITransport(app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        found = await asyncio.to_thread(self._transport.handle_request, request)
        return httpx.Response(
            found.status_code, headers=found.headers, content=found.read()
        )


def options_of(path: str, timeout: float) -> dict[str, Any]:
    return {"timeout": 300 if path.startswith("/waits") else timeout}


def text_of(held: Held | sync.Held, header: dict[str, str], body: bytes = b"") -> str:
    """Return the resource, its fence as the header has it, and the body."""
    held.check()
    said = body.decode("utf-8", "replace")
    return f"{held.resource} {header['Lock-Fence']} {said}"


async def lose(held: Held, locks: Locks) -> None:
    async for seen in locks.list():
        await locks.force_release(seen, reason="test")
    await held.extend()


def lose_sync(held: sync.Held, locks: sync.Locks) -> None:
    for seen in locks.list():
        locks.force_release(seen, reason="test")
    held.extend()


@asynccontextmanager
async def lifespan_of(app: Any) -> AsyncIterator[None]:  # noqa: ANN401
    """Run the lifespan of an ASGI application, as its server does.

    Raises what the application raises when it starts.
    """
    events: asyncio.Queue[Message] = asyncio.Queue()
    answers: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, events.get, answers.put))
    await events.put({"type": "lifespan.startup"})
    if (await answers.get())["type"] != "lifespan.startup.complete":
        await running
    yield
    await events.put({"type": "lifespan.shutdown"})
    await running


@asynccontextmanager
async def with_starlette(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    def route(path: str, template: str) -> Route:
        @of_starlette.hold(template, **options_of(path, timeout))
        async def answer(request: Request) -> Response:
            held = of_starlette.get_held(request)
            if path.startswith("/lost"):
                await lose(held, of_starlette.get_locks(request))
            header = of_starlette.fence_header(held)
            return PlainTextResponse(text_of(held, header, await request.body()))

        return Route(path, answer, methods=GET_AND_POST)

    async def fenced(request: Request) -> Response:
        return PlainTextResponse(str(of_starlette.get_fence(request)))

    async def unheld(request: Request) -> Response:
        return PlainTextResponse(of_starlette.get_held(request).resource)

    app = Starlette(
        routes=[
            *(route(*each) for each in TEMPLATES.items()),
            Route("/fence", fenced, methods=GET_AND_POST),
            Route("/unheld", unheld),
            Route("/ready", of_starlette.health),
        ]
    )
    of_starlette.add_locks(app, connect(memory), required=required)
    async with lifespan_of(app):
        yield WebApp(app, stop_waiting=lambda: of_starlette.stop_waiting(app))


@asynccontextmanager
async def with_fastapi(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    app = FastAPI()
    of_fastapi.add_locks(app, connect(memory), required=required)

    def route(path: str, template: str) -> None:
        async def answer(request: Request, held: Held) -> Response:
            if path.startswith("/lost"):
                await lose(held, of_fastapi.get_locks(request))
            header = of_fastapi.fence_header(held)
            return PlainTextResponse(text_of(held, header, await request.body()))

        dependency = of_fastapi.hold(template, **options_of(path, timeout))
        answer.__annotations__["held"] = Annotated[Held, dependency]
        app.api_route(path, methods=GET_AND_POST)(answer)

    for each in TEMPLATES.items():
        route(*each)

    @app.api_route("/fence", methods=GET_AND_POST)
    async def fenced(fence: of_fastapi.FenceDep) -> int:
        return fence

    app.get("/ready")(of_fastapi.health)
    async with lifespan_of(app):
        yield WebApp(app, stop_waiting=lambda: of_fastapi.stop_waiting(app))


AnyRequest = litestar.Request[Any, Any, Any]


@asynccontextmanager
async def with_litestar(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    def route(path: str, handler: Any) -> Any:  # noqa: ANN401 - Litestar's
        typed = path.replace("}", ":str}")
        methods: Any = GET_AND_POST
        return litestar.route(typed, http_method=methods, status_code=200)(handler)

    def holding(path: str, template: str) -> Any:  # noqa: ANN401
        @of_litestar.hold(template, **options_of(path, timeout))
        async def answer(request: AnyRequest) -> str:
            held = of_litestar.get_held(request)
            if path.startswith("/lost"):
                await lose(held, of_litestar.get_locks(request))
            header = of_litestar.fence_header(held)
            return text_of(held, header, await request.body())

        return route(path, answer)

    async def fenced(request: AnyRequest) -> str:
        return str(of_litestar.get_fence(request))

    async def unheld(request: AnyRequest) -> str:
        return of_litestar.get_held(request).resource

    app = litestar.Litestar(
        [
            *(holding(*each) for each in TEMPLATES.items()),
            route("/fence", fenced),
            route("/unheld", unheld),
            litestar.get("/ready")(of_litestar.health),
        ],
        plugins=[of_litestar.add_locks(connect(memory), required=required)],
        openapi_config=None,
        logging_config=None,
    )
    async with lifespan_of(app):
        yield WebApp(app, stop_waiting=lambda: of_litestar.stop_waiting(app))


@asynccontextmanager
async def with_aiohttp(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    app = web.Application()
    of_aiohttp.add_locks(app, connect(memory), required=required)

    def route(path: str, handler: Any) -> None:  # noqa: ANN401
        for method in GET_AND_POST:
            app.router.add_route(method, path, handler)

    def holding(path: str, template: str) -> None:
        @of_aiohttp.hold(template, **options_of(path, timeout))
        async def answer(request: web.Request) -> web.Response:
            held = of_aiohttp.get_held(request)
            if path.startswith("/lost"):
                await lose(held, of_aiohttp.get_locks(request))
            header = of_aiohttp.fence_header(held)
            return web.Response(text=text_of(held, header, await request.read()))

        route(path, answer)

    async def fenced(request: web.Request) -> web.Response:
        return web.Response(text=str(of_aiohttp.get_fence(request)))

    for each in TEMPLATES.items():
        holding(*each)
    route("/fence", fenced)
    app.router.add_get("/ready", of_aiohttp.health)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        async with serve_aiohttp(app, sock):
            stop = lambda: of_aiohttp.stop_waiting(app)  # noqa: E731
            yield WebApp(app, "http", stop, sock.getsockname()[1])


def angled(path: str) -> str:
    """Return the path as Flask and Django write it."""
    return path.replace("{", "<").replace("}", ">")


@asynccontextmanager
async def with_flask(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    assert not required
    app = Flask(__name__)
    # So that a failure of this test shows the error, and not only a 500.
    app.config["PROPAGATE_EXCEPTIONS"] = True
    of_flask.add_locks(app, lambda: sync.connect(memory))

    def route(path: str, template: str) -> None:
        @of_flask.hold(template, **options_of(path, timeout))
        def answer(**_: str) -> str:
            held = of_flask.get_held()
            if path.startswith("/lost"):
                lose_sync(held, of_flask.get_locks())
            header = of_flask.fence_header(held)
            return text_of(held, header, flask_request.get_data())

        app.add_url_rule(angled(path), path, answer, methods=GET_AND_POST)

    for each in TEMPLATES.items():
        route(*each)

    @app.route("/fence", methods=GET_AND_POST)
    def fenced() -> str:
        return str(of_flask.get_fence())

    @app.get("/unheld")
    def unheld() -> str:
        return of_flask.get_held().resource

    app.get("/ready")(of_flask.health)
    yield WebApp(app, "wsgi")
    await asyncio.to_thread(app.extensions["aiorwlock_remote"].close)


def django_urls(
    memory: FaultyMemory, timeout: float, *, with_async: bool
) -> tuple[Any, ...]:
    def route(path: str, template: str) -> Any:  # noqa: ANN401 - of Django
        holding = of_django.hold(template, **options_of(path, timeout))

        @holding
        def answer(request: HttpRequest, **_: str) -> HttpResponse:
            held = of_django.get_held(request)
            if path.startswith("/lost"):
                lose_sync(held, of_django.get_locks())
            header = of_django.fence_header(held)
            return HttpResponse(text_of(held, header, request.body))

        @holding
        async def answer_async(request: HttpRequest, **_: str) -> HttpResponse:
            held: Any = of_django.get_held(request)
            if path.startswith("/lost"):
                async with memory.connect_rival() as rival:
                    await lose(held, rival)
            header = of_django.fence_header(held)
            return HttpResponse(text_of(held, header, request.body))

        view: Any = answer_async if with_async else answer
        return django_path(angled(path).removeprefix("/"), view)

    def fenced(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(of_django.get_fence(request)))

    def unheld(request: HttpRequest) -> HttpResponse:
        return HttpResponse(of_django.get_held(request).resource)

    return (
        *(route(*each) for each in TEMPLATES.items()),
        django_path("fence", fenced),
        django_path("unheld", unheld),
        django_path("ready", of_django.health),
    )


def django_settings(
    memory: FaultyMemory, timeout: float, *, with_async: bool
) -> override_settings:
    return override_settings(
        AIORWLOCK_REMOTE={"store": memory},
        ALLOWED_HOSTS=["*"],
        DEBUG_PROPAGATE_EXCEPTIONS=True,
        MIDDLEWARE=[f"{of_django.__name__}.LockErrorMiddleware"],
        ROOT_URLCONF=django_urls(memory, timeout, with_async=with_async),
    )


@asynccontextmanager
async def with_django(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    with django_settings(memory, timeout, with_async=True):
        application: Any = get_asgi_application()
        app: Any = of_django.add_locks(application, required=required)
        # There is no public way: only the handlers of signals call it.
        cells = dict(zip(app.__code__.co_freevars, app.__closure__, strict=True))
        app_locks = cells["app_locks"].cell_contents
        async with lifespan_of(app):
            yield WebApp(app, stop_waiting=app_locks.stop_waiting)
    gc.collect()  # files of bodies that Django has not closed


@asynccontextmanager
async def with_django_wsgi(
    memory: FaultyMemory, timeout: float, *, required: bool
) -> AsyncIterator[WebApp]:
    assert not required
    with django_settings(memory, timeout, with_async=False):
        yield WebApp(get_wsgi_application(), "wsgi")


APPS: dict[str, Any] = {
    "starlette": with_starlette,
    "fastapi": with_fastapi,
    "litestar": with_litestar,
    "django": with_django,
    "django-wsgi": with_django_wsgi,
    "flask": with_flask,
    "aiohttp": with_aiohttp,
}
THREADED = ("django-wsgi", "flask")
"""Their locks are opened by the first request, so no start can fail."""


def running(
    kind: str, memory: FaultyMemory, timeout: float = 0.1, *, required: bool = False
) -> AbstractAsyncContextManager[WebApp]:
    """Run the application of this name; ``timeout``: of its holds."""
    found: AbstractAsyncContextManager[WebApp] = APPS[kind](
        memory, timeout, required=required
    )
    return found
