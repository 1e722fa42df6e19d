"""Requests as any client may send them, to the web integrations and the board."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations import fastapi as of_fastapi
from aiorwlock_remote.integrations import starlette as of_starlette
from aiorwlock_remote.integrations.board import guard
from aiorwlock_remote.integrations.board.asgi import asgi_app
from aiorwlock_remote.integrations.board.site import BoardSite
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.fuzz.hostile import HOSTILE
from tests.integrations.asgi_connection import scope_of

EXAMPLES = 120
BUSY = "order", "7"
DOCUMENTED = {200, 304, 400, 403, 404, 405, 411, 412, 413, 415, 421, 422, 423}
"""None of them says that the server has failed, nor that the store has."""

templates = {
    "/path/{id}": "order:{id}",
    "/number/{id}": "order:{id:int}",
    "/query": "order:{query.id:int}",
    "/body": "order:{body.id:int}",
}


def starlette_app(memory: FaultyMemory) -> Starlette:
    def route(path: str, template: str) -> Route:
        @of_starlette.hold(template, timeout=0)
        async def told(request: Request) -> Response:
            return PlainTextResponse(of_starlette.get_held(request).resource)

        return Route(path, told, methods=["GET", "POST"])

    async def fenced(request: Request) -> Response:
        return PlainTextResponse(str(of_starlette.get_fence(request)))

    routes = [route(*each) for each in templates.items()]
    app = Starlette(routes=[*routes, Route("/fence", fenced, methods=["GET", "POST"])])
    of_starlette.add_locks(app, connect(memory))
    return app


def fastapi_app(memory: FaultyMemory) -> FastAPI:
    app = FastAPI()
    of_fastapi.add_locks(app, connect(memory))

    def route(path: str, template: str) -> None:
        async def told(held: Held) -> str:
            return held.resource

        dependency = of_fastapi.hold(template, timeout=0)
        told.__annotations__["held"] = Annotated[Held, dependency]
        app.api_route(path, methods=["GET", "POST"])(told)

    for path, template in templates.items():
        route(path, template)

    @app.api_route("/fence", methods=["GET", "POST"])
    async def fenced(fence: of_fastapi.FenceDep) -> int:
        return fence

    return app


class Site:
    """An application that runs, and a lock of its store that another process holds."""

    def __init__(
        self,
        runner: asyncio.Runner,
        app: ASGIApp,
        neighbour: Held,
        usual: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self.runner = runner
        self.app = app
        self.neighbour = neighbour
        self.usual = usual

    def ask(self, scope: Scope, body: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body, raise what reaches the server."""
        return self.runner.run(self._ask(scope, body))

    async def _ask(self, scope: Scope, body: bytes) -> tuple[int, bytes]:
        sent: list[Message] = []
        parts: list[Message] = [
            {"type": "http.request", "body": body[:3], "more_body": True},
            {"type": "http.request", "body": body[3:], "more_body": False},
        ]

        async def receive() -> Message:
            if parts:
                return parts.pop(0)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        async with asyncio.timeout(30):
            await self.app(scope, receive, send)
        status = next(m["status"] for m in sent if m["type"] == "http.response.start")
        return status, b"".join(m.get("body", b"") for m in sent)


USUAL = (
    *((b"host", b"localhost:8080"), (b"origin", b"http://localhost:8080")),
    (b"content-type", b"application/json"),
)
"""Headers without which the board looks at nothing else."""


@asynccontextmanager
async def running(
    kind: str,
) -> AsyncIterator[tuple[ASGIApp, Held, Sequence[tuple[bytes, bytes]]]]:
    memory = FaultyMemory()
    async with AsyncExitStack() as stack:
        others = await stack.enter_async_context(connect(memory))
        held = await others.mutex(*BUSY).acquire(lease=600)
        stack.push_async_callback(held.release)
        if kind == "board":
            site = BoardSite(connect(memory), every=60.0, allow_break=True)
            stack.push_async_callback(site.board.aclose)
            token = (guard.TOKEN_HEADER.encode(), site._token.encode())
            yield asgi_app(site), held, (*USUAL, token)
        else:
            make: Callable[[FaultyMemory], Starlette]
            make = starlette_app if kind == "starlette" else fastapi_app
            app = make(memory)
            await stack.enter_async_context(app.router.lifespan_context(app))
            yield app, held, USUAL


APPS = ["starlette", "fastapi"]


@pytest.fixture(params=[*APPS, "board"], scope="module")
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
    decoded = unquote(path.decode("latin-1"))
    sent = {**dict(given_headers), **dict(site.usual)} if usual else {}
    sent_headers = tuple(sent.items()) or tuple(given_headers)
    scope = scope_of(decoded, *sent_headers, method=method, raw_path=path)
    scope["query_string"] = query.replace(b"#", b"")
    if decoded.strip("/") == "events":
        return  # a stream that lasts as long as its client
    status, _ = site.ask(scope, body)
    assert status in DOCUMENTED
    site.neighbour.check()


@pytest.mark.parametrize("site", APPS, indirect=True)
@pytest.mark.parametrize("path", ["/path/7", "/path/%37", "/number/7", "/number/%37"])
def test_a_lock_that_is_held_is_held_by_each_spelling(site: Site, path: str) -> None:
    assert site.ask(scope_of(unquote(path), method="GET"), b"")[0] == 423


@pytest.mark.parametrize("site", APPS, indirect=True)
@pytest.mark.parametrize(
    ("query", "body"), [(b"id=%37", b""), (b"%69d=7", b""), (b"", b'{"id": 7}')]
)
def test_and_by_query_and_body(site: Site, query: bytes, body: bytes) -> None:
    scope = scope_of("/body" if body else "/query", *USUAL, query_string=query)
    assert site.ask(scope, body)[0] == 423
