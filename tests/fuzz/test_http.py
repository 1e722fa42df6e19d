"""Requests as any client may send them, to the web integrations and the board."""

from __future__ import annotations

import asyncio
import json
import socket
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Annotated, Any
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes
from wsgiref.util import setup_testing_defaults

import litestar
import pytest
from aiohttp import web
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import FastAPI
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message

from aiorwlock_remote import Held, Mutex, connect, sync
from aiorwlock_remote.integrations import aiohttp as of_aiohttp
from aiorwlock_remote.integrations import fastapi as of_fastapi
from aiorwlock_remote.integrations import flask as of_flask
from aiorwlock_remote.integrations import litestar as of_litestar
from aiorwlock_remote.integrations import starlette as of_starlette
from aiorwlock_remote.integrations.board import guard
from aiorwlock_remote.integrations.board.asgi import asgi_app
from aiorwlock_remote.integrations.board.site import BoardSite
from aiorwlock_remote.integrations.django import views as of_django
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.fuzz.hostile import HOSTILE
from tests.integrations.asgi_connection import scope_of
from tests.integrations.guests import serve_aiohttp
from tests.recipes.django_settings import configure

configure()

EXAMPLES = 60
BUSY = "order", "7"
REDIRECTED = {307, 308}
"""Of the routers of Starlette and Flask: a path has a slash too many."""
DOCUMENTED = REDIRECTED | {
    *(200, 304, 400, 403, 404, 405, 411, 412, 413, 415, 421, 422, 423)
}
"""None of them says that the server has failed, nor that the store has."""

GET_AND_POST = ["GET", "POST"]
TEMPLATES = {
    "/path/{id}": "order:{id}",
    "/number/{id}": "order:{id:int}",
    "/query": "order:{query.id:int}",
    "/body": "order:{body.id:int}",
}
"""Each integration has a handler for each, and ``/fence``, which reads the header."""


def starlette_app(memory: FaultyMemory) -> Starlette:
    def route(path: str, template: str) -> Route:
        @of_starlette.hold(template, timeout=0)
        async def answer(request: Request) -> Response:
            return PlainTextResponse(of_starlette.get_held(request).resource)

        return Route(path, answer, methods=GET_AND_POST)

    async def fenced(request: Request) -> Response:
        return PlainTextResponse(str(of_starlette.get_fence(request)))

    routes = [route(*each) for each in TEMPLATES.items()]
    app = Starlette(routes=[*routes, Route("/fence", fenced, methods=GET_AND_POST)])
    of_starlette.add_locks(app, connect(memory))
    return app


def fastapi_app(memory: FaultyMemory) -> FastAPI:
    app = FastAPI()
    of_fastapi.add_locks(app, connect(memory))

    def route(path: str, template: str) -> None:
        async def answer(held: Held) -> str:
            return held.resource

        dependency = of_fastapi.hold(template, timeout=0)
        answer.__annotations__["held"] = Annotated[Held, dependency]
        app.api_route(path, methods=GET_AND_POST)(answer)

    for path, template in TEMPLATES.items():
        route(path, template)

    @app.api_route("/fence", methods=GET_AND_POST)
    async def fenced(fence: of_fastapi.FenceDep) -> int:
        return fence

    return app


AnyRequest = litestar.Request[Any, Any, Any]


def litestar_app(memory: FaultyMemory) -> litestar.Litestar:
    def route(path: str, handler: Any) -> Any:  # noqa: ANN401 - Litestar's
        typed = path.replace("}", ":str}")
        methods: Any = GET_AND_POST
        return litestar.route(typed, http_method=methods, status_code=200)(handler)

    def holding(path: str, template: str) -> Any:  # noqa: ANN401
        @of_litestar.hold(template, timeout=0)
        async def answer(request: AnyRequest) -> str:
            return of_litestar.get_held(request).resource

        return route(path, answer)

    async def fenced(request: AnyRequest) -> str:
        return str(of_litestar.get_fence(request))

    return litestar.Litestar(
        [*(holding(*each) for each in TEMPLATES.items()), route("/fence", fenced)],
        plugins=[of_litestar.add_locks(connect(memory))],
        openapi_config=None,
        logging_config=None,
    )


def aiohttp_app(memory: FaultyMemory) -> web.Application:
    app = web.Application()
    of_aiohttp.add_locks(app, connect(memory))

    def route(path: str, template: str) -> None:
        @of_aiohttp.hold(template, timeout=0)
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=of_aiohttp.get_held(request).resource)

        for method in GET_AND_POST:
            app.router.add_route(method, path, answer)

    async def fenced(request: web.Request) -> web.Response:
        return web.Response(text=str(of_aiohttp.get_fence(request)))

    for each in TEMPLATES.items():
        route(*each)
    for method in GET_AND_POST:
        app.router.add_route(method, "/fence", fenced)
    return app


def angled(path: str) -> str:
    """Return the path as Flask and Django write it."""
    return path.replace("{", "<").replace("}", ">")


def flask_app(memory: FaultyMemory) -> Flask:
    app = Flask(__name__)
    # So that a failure of this test shows the error, and not only a 500.
    app.config["PROPAGATE_EXCEPTIONS"] = True
    of_flask.add_locks(app, lambda: sync.connect(memory))

    def route(path: str, template: str) -> None:
        @of_flask.hold(template, timeout=0)
        def answer(**_: str) -> str:
            return of_flask.get_held().resource

        app.add_url_rule(angled(path), path, answer, methods=GET_AND_POST)

    for each in TEMPLATES.items():
        route(*each)

    @app.route("/fence", methods=GET_AND_POST)
    def fenced() -> str:
        return str(of_flask.get_fence())

    return app


def django_urls(*, with_async: bool) -> tuple[Any, ...]:
    def route(path: str, template: str) -> Any:  # noqa: ANN401 - of Django
        holding = of_django.hold(template, timeout=0)

        @holding
        def answer(request: HttpRequest, **_: str) -> HttpResponse:
            return HttpResponse(of_django.get_held(request).resource)

        @holding
        async def answer_async(request: HttpRequest, **_: str) -> HttpResponse:
            return HttpResponse(of_django.get_held(request).resource)

        view: Any = answer_async if with_async else answer
        return django_path(angled(path).removeprefix("/"), view)

    def fenced(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(of_django.get_fence(request)))

    routes = (route(*each) for each in TEMPLATES.items())
    return *routes, django_path("fence", fenced)


def django_settings(memory: FaultyMemory, *, with_async: bool) -> override_settings:
    return override_settings(
        AIORWLOCK_REMOTE={"store": memory},
        DEBUG_PROPAGATE_EXCEPTIONS=True,
        MIDDLEWARE=[f"{of_django.__name__}.LockErrorMiddleware"],
        ROOT_URLCONF=django_urls(with_async=with_async),
    )


Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Sent:
    """A request, by its bytes; ``path`` is percent-encoded."""

    path: bytes
    query: bytes = b""
    headers: Headers = ()
    body: bytes = b""
    method: str = "POST"


Ask = Callable[[Sent], Awaitable[int]]
"""Sends a request; returns the status, raises what reaches the server."""


async def ask_asgi(app: Any, sent: Sent) -> int:  # noqa: ANN401 - each has own types
    answer: list[Message] = []
    parts: list[Message] = [
        {"type": "http.request", "body": sent.body[:3], "more_body": True},
        {"type": "http.request", "body": sent.body[3:], "more_body": False},
    ]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()  # until the client leaves
        return parts.pop(0)

    async def send(message: Message) -> None:
        answer.append(message)

    path = unquote(sent.path.decode("latin-1"))
    scope = scope_of(path, *sent.headers, method=sent.method, raw_path=sent.path)
    scope["query_string"] = sent.query
    await app(scope, receive, send)
    status = next(m["status"] for m in answer if m["type"] == "http.response.start")
    assert isinstance(status, int)
    return status


async def ask_wsgi(app: Any, sent: Sent) -> int:  # noqa: ANN401
    """In a thread, as synchronous locks refuse one in which an event loop runs."""
    return await asyncio.to_thread(_call_wsgi, app, sent)


def _call_wsgi(app: Any, sent: Sent) -> int:  # noqa: ANN401
    answer: list[str] = []

    def start_response(status: str, *_: object) -> None:
        answer.append(status)

    chunks: Iterable[bytes] = app(_environ(sent), start_response)
    for _ in chunks:
        pass
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
    return int(answer[-1].split(" ")[0])


def _environ(sent: Sent) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": sent.method,
        "PATH_INFO": unquote_to_bytes(sent.path).decode("latin-1"),
        "QUERY_STRING": sent.query.decode("latin-1"),
        "wsgi.input": BytesIO(sent.body),
    }
    for name, value in framed(sent).headers:
        key = name.decode().upper().replace("-", "_")
        if not key.startswith("CONTENT_"):
            key = f"HTTP_{key}"
        before = f"{environ[key]}," if key in environ else ""
        environ[key] = before + value.decode("latin-1")
    setup_testing_defaults(environ)
    return environ


async def ask_aiohttp(port: int, sent: Sent) -> int:
    """By its own server, as no other one can call its handlers."""
    target = sent.path + (b"?" + sent.query if sent.query else b"")
    # aiohttp's parser answers all other bytes, and a request without a host, by 400.
    line = quote_from_bytes(target, safe=string.punctuation).encode()
    headers = [(b"connection", b"close"), *framed(sent).headers]
    if b"host" not in dict(headers):
        headers = [(b"host", b"localhost"), *headers]
    lines = b"".join(
        name + b": " + bytes(b for b in value if b >= ord(" ") and b != 0x7F) + b"\r\n"
        for name, value in headers
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"%b %b HTTP/1.1\r\n%b\r\n" % (sent.method.encode(), line, lines) + sent.body
    )
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


def framed(sent: Sent) -> Sent:
    """Return the request with the length of its body, as servers see to.

    Left out: lengths that are none. aiohttp's server answers them by 400, or waits for
    the rest of the body; ``request.body`` of Django raises ``ValueError``, and no
    server of Django passes them on.
    """
    others = (each for each in sent.headers if each[0] != b"content-length")
    length = b"content-length", str(len(sent.body)).encode()
    return replace(sent, headers=(*others, length))


USUAL: Headers = (
    *((b"host", b"localhost:8080"), (b"origin", b"http://localhost:8080")),
    (b"content-type", b"application/json"),
)
"""Headers without which the board looks at nothing else."""


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[Ask]:  # noqa: ANN401
    """Run the lifespan of an ASGI application, as its server does."""
    events: asyncio.Queue[Message] = asyncio.Queue()
    answers: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, events.get, answers.put))
    await events.put({"type": "lifespan.startup"})
    assert (await answers.get())["type"] == "lifespan.startup.complete"
    yield partial(ask_asgi, app)
    await events.put({"type": "lifespan.shutdown"})
    await running


def starlette_site(memory: FaultyMemory) -> AbstractAsyncContextManager[Ask]:
    return started(starlette_app(memory))


def fastapi_site(memory: FaultyMemory) -> AbstractAsyncContextManager[Ask]:
    return started(fastapi_app(memory))


def litestar_site(memory: FaultyMemory) -> AbstractAsyncContextManager[Ask]:
    return started(litestar_app(memory))


@asynccontextmanager
async def django_site(memory: FaultyMemory) -> AsyncIterator[Ask]:
    with django_settings(memory, with_async=True):
        application: Any = get_asgi_application()
        async with started(of_django.add_locks(application)) as ask:
            yield lambda sent: ask(framed(sent))


@asynccontextmanager
async def django_wsgi_site(memory: FaultyMemory) -> AsyncIterator[Ask]:
    with django_settings(memory, with_async=False):
        yield partial(ask_wsgi, get_wsgi_application())


@asynccontextmanager
async def flask_site(memory: FaultyMemory) -> AsyncIterator[Ask]:
    app = flask_app(memory)
    yield partial(ask_wsgi, app)
    await asyncio.to_thread(app.extensions["aiorwlock_remote"].close)


@asynccontextmanager
async def aiohttp_site(memory: FaultyMemory) -> AsyncIterator[Ask]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        async with serve_aiohttp(aiohttp_app(memory), sock):
            yield partial(ask_aiohttp, sock.getsockname()[1])


@asynccontextmanager
async def board_site(memory: FaultyMemory) -> AsyncIterator[Ask]:
    site = BoardSite(connect(memory), every=60.0, allow_break=True)
    token = guard.TOKEN_HEADER.encode(), site._token.encode()
    app = asgi_app(site)

    async def ask(sent: Sent) -> int:
        usual = dict(sent.headers).items() >= dict(USUAL).items()
        headers = (*sent.headers, token) if usual else sent.headers
        return await ask_asgi(app, replace(sent, headers=headers))

    yield ask
    await site.board.aclose()


SITES = {
    "starlette": starlette_site,
    "fastapi": fastapi_site,
    "litestar": litestar_site,
    "django": django_site,
    "django-wsgi": django_wsgi_site,
    "flask": flask_site,
    "aiohttp": aiohttp_site,
}
each_site = pytest.mark.parametrize("site", SITES, indirect=True)


class Site:
    """An application that runs, and a lock of its store that another process holds."""

    def __init__(
        self, runner: asyncio.Runner, ask: Ask, neighbour: Held, lock: Mutex
    ) -> None:
        self._runner = runner
        self._ask = ask
        self._neighbour = neighbour
        self._lock = lock

    def ask(self, sent: Sent) -> int:
        """Send a request; return the status, raise what reaches the server.

        Fail if the neighbour's lock is not held afterwards.
        """
        return self._runner.run(self._asked(sent))

    async def _asked(self, sent: Sent) -> int:
        async with asyncio.timeout(30):
            status = await self._ask(sent)
        self._neighbour.check()
        (holder,) = (await self._lock.info()).holders
        assert holder.fence == self._neighbour.fence
        return status


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[tuple[Ask, Held, Mutex]]:
    memory = FaultyMemory()
    make = {**SITES, "board": board_site}[kind]
    async with connect(memory) as others, make(memory) as ask:
        lock = others.mutex(*BUSY)
        # Not `async with`: the fixture enters and exits in two tasks.
        held = await lock.acquire(lease=600)
        yield ask, held, lock
        await held.release()


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with asyncio.Runner() as runner:
        context = running(request.param)
        yield Site(runner, *runner.run(context.__aenter__()))
        runner.run(context.__aexit__(None, None, None))


texts = st.sampled_from(tuple(HOSTILE.values())) | st.text(max_size=20)
quoted = texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
raw = quoted | st.binary(max_size=20)
exact = st.sampled_from(
    [b"/path/1", b"/number/7", b"/query", b"/body", b"/fence", b"/", b"/break"]
)
paths = (
    exact
    | st.sampled_from([b"/history/1", b"/history/1/60", b"/board.js"])
    | st.builds(
        lambda start, rest: start + rest.replace(b"?", b"%3F"),
        st.sampled_from([b"/path/", b"/number/", b"/history/", b"/"]),
        raw,
    )
)
names = st.sampled_from(
    [
        *(b"lock-fence", b"content-type", b"content-length", b"host", b"origin"),
        *(b"x-board-token", b"accept-encoding", b"cookie", b"x"),
    ]
)
values = st.sampled_from(
    [
        *(b"application/json", b"test", b"http://test", b"1795000000000000", b"-1"),
        *(b"9" * 17, b"1 ", b"\xb2", b"0x1", b"", b"1,2"),
        # Not "hex" and others that decode no text: Django's request raises LookupError
        # for them when it is made.
        *(b"application/json; charset=utf-7", b"application/json; charset=none"),
    ]
) | st.binary(max_size=12)
headers = st.lists(st.tuples(names, values), max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner),
    max_leaves=5,
)
bodies = (
    st.binary(max_size=30)
    | st.builds(
        lambda value: json.dumps({"id": value}).encode("utf-8", "surrogatepass"),
        json_values,
    )
    | st.sampled_from([b"[" * 50_000, b'{"id": "a", "id": "b"}', b'{"id": 1e999}'])
    | st.builds(
        lambda row, holder: json.dumps(
            {"row": row, "holder": holder, "fence": "1", "reason": "x"}
        ).encode("utf-8", "surrogatepass"),
        json_values,
        json_values,
    )
)


@pytest.mark.parametrize("site", [*SITES, "board"], indirect=True)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(
    path=paths,
    query=st.builds(
        lambda key, value: key + value, st.just(b"id=") | raw, raw | st.just(b"1")
    ),
    given_headers=headers,
    body=bodies,
    method=st.sampled_from(["POST", "GET", "POST", "GET", "HEAD", "X"]),
    usual=st.booleans(),
)
def test_any_request_is_answered(
    site: Site,
    path: bytes,
    query: bytes,
    given_headers: list[tuple[bytes, bytes]],
    body: bytes,
    method: str,
    usual: bool,
) -> None:
    """By a documented status, without an exception, and the neighbour's lock stays."""
    if unquote_to_bytes(path).strip(b"/") == b"events":
        return  # a stream that lasts as long as its client
    sent = {**dict(given_headers), **dict(USUAL)}.items() if usual else given_headers
    request = Sent(path, query.replace(b"#", b""), tuple(sent), body, method)
    assert site.ask(request) in DOCUMENTED


@each_site
@pytest.mark.parametrize(
    "path", [b"/path/7", b"/path/%37", b"/number/7", b"/number/%37"]
)
def test_a_lock_that_is_held_is_held_by_each_spelling(site: Site, path: bytes) -> None:
    assert site.ask(Sent(path, method="GET")) == 423


@each_site
@pytest.mark.parametrize(
    ("query", "body"), [(b"id=%37", b""), (b"%69d=7", b""), (b"", b'{"id": 7}')]
)
def test_a_lock_is_busy_by_query_and_by_body(
    site: Site, query: bytes, body: bytes
) -> None:
    path = b"/body" if body else b"/query"
    assert site.ask(Sent(path, query, USUAL, body)) == 423
